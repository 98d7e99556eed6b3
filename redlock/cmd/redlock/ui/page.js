'use strict';
// The page shows what the server tells it (/events), and asks for nothing else. All text goes through textContent.

const $ = id => document.getElementById(id);
const rowHeight = 35; // of page.css, with the border
const rows = new Map(); // the locks, by their ids
let shown = [];         // the ids that the filter leaves, sorted
let sortBy = 0;         // the column
let backwards = false;  // what it has last comes first
let skew = 0;           // this clock, less the server's, in ms
let about = {};
let listed = 0;         // when the list began that is shown, in ms by the server's clock; 0 before the first
let open = null;        // the id of the lock in the dialog
let openKey = '';       // its key
let watching = null;    // the EventSource of that lock

function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function left(ends) {
  if (ends === null || ends === undefined) return '';
  const s = Math.max(0, (ends - (Date.now() - skew)) / 1000);
  if (s >= 3600) return Math.floor(s / 3600) + 'h' + Math.floor(s % 3600 / 60) + 'm';
  if (s >= 100) return Math.floor(s / 60) + 'm' + Math.floor(s % 60) + 's';
  return s.toFixed(1) + 's';
}

const ago = since => since === null ? '' : left(2 * (Date.now() - skew) - since);
const clock = time => new Date(time).toISOString().slice(0, 19).replace('T', ' ') + ' UTC';

// What a column is sorted by, as its first click shows it: of ages and waiters the greatest first. Null comes last.
const columns = [
  l => l.key, l => l.holder, l => l.kind, l => l.masters,
  l => l.kind === '' ? null : endless(l) ? Infinity : l.ends, l => l.since, l => l.waiting > 0 ? -l.waiting : null,
];

const endless = lock => lock.kind !== '' && lock.ends === null;

// Locks: only the rows that can be seen are in the document, so many locks cost no more than few.

let stale = true;   // the rows have changed, and what is shown was not sorted since
let drawing = false;

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawAge();
    if (stale) sort();
    drawRows();
    if (open !== null) drawDetail();
  });
}

// A list that is old says so: the stream may live while the list is not made.
function drawAge() {
  if (listed === 0) return;
  const s = Math.max(0, Math.floor((Date.now() - skew - listed) / 1000));
  put($('locks-age'), s < 3 ? '' : left(Date.now() - skew + s * 1000) + ' old');
  $('locks-age').className = 'bad';
}

function sort() {
  stale = false;
  const part = $('filter').value.toLowerCase();
  const all = [];
  for (const lock of rows.values()) {
    if (part === '' || lock.key.toLowerCase().includes(part) || lock.holder.toLowerCase().includes(part)) all.push(lock);
  }
  const of = columns[sortBy], order = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  all.sort((a, b) => {
    const x = of(a), y = of(b);
    const first = x === null || y === null ? order(x === null, y === null) : backwards ? order(y, x) : order(x, y);
    return first || order(a.key, b.key) || order(a.id, b.id);
  });
  shown = all.map(lock => lock.id);
  $('locks-count').textContent = shown.length === rows.size ? rows.size : shown.length + ' of ' + rows.size;
  $('none').hidden = shown.length > 0;
}

function drawRows() {
  const scroll = $('scroll'), body = $('rows');
  const visible = Math.ceil(scroll.clientHeight / rowHeight) + 12;
  const first = Math.max(0, Math.min(Math.floor(scroll.scrollTop / rowHeight) - 5, shown.length - visible)); // the list may have become shorter
  const last = Math.min(shown.length, first + visible);
  $('above').style.height = first * rowHeight + 'px';
  $('below').style.height = (shown.length - last) * rowHeight + 'px';
  while (body.rows.length > last - first) body.lastChild.remove();
  while (body.rows.length < last - first) body.append(newRow());
  for (let i = first; i < last; i++) fillRow(body.rows[i - first], rows.get(shown[i]), i);
}

function newRow() {
  const tr = make('tr');
  for (let i = 0; i < 7; i++) tr.append(make('td', undefined, i > 2 ? 'n' : ''));
  const button = make('button');
  button.addEventListener('click', () => show(tr.dataset.id));
  button.addEventListener('keydown', step);
  tr.cells[0].append(button);
  return tr;
}

function put(node, text) { if (node.textContent !== text) node.textContent = text; }

function fillRow(tr, lock, i) {
  tr.dataset.id = lock.id;
  tr.dataset.at = i;
  tr.className = lock.held ? '' : 'faint';
  const button = tr.cells[0].firstChild;
  put(button, lock.key);
  button.title = lock.key;
  put(tr.cells[1], lock.holder);
  tr.cells[1].title = lock.holder;
  put(tr.cells[2], lock.kind || 'free');
  put(tr.cells[3], lock.masters);
  put(tr.cells[4], endless(lock) ? 'no end' : left(lock.ends));
  put(tr.cells[5], ago(lock.since));
  put(tr.cells[6], lock.waiting < 0 ? '?' : lock.waiting === 0 ? '' : String(lock.waiting));
}

// step moves the focus to another row, also to one that is not in the document yet.
function step(event) {
  const by = {ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity}[event.key];
  if (by === undefined) return;
  event.preventDefault();
  if (stale) sort();
  const at = Number(event.target.closest('tr').dataset.at);
  const to = Math.max(0, Math.min(shown.length - 1, at + by));
  const scroll = $('scroll'), top = to * rowHeight, head = rowHeight;
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  else if (top + rowHeight + head > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + rowHeight + head - scroll.clientHeight;
  drawRows();
  for (const tr of $('rows').rows) if (Number(tr.dataset.at) === to) tr.cells[0].firstChild.focus();
}

// One lock.

function show(id) {
  const lock = rows.get(id);
  if (!lock) return; // it has gone since it was drawn
  open = id;
  openKey = lock.key;
  $('changes').replaceChildren();
  $('revoke-said').textContent = '';
  $('reason').value = '';
  drawDetail();
  $('detail').showModal();
  if (watching) watching.close();
  watching = null;
  $('changes-head').hidden = lock.kind === 'permits'; // who watches a key learns nothing of its permits
  if (lock.kind === 'permits') return;
  watching = new EventSource('watch?row=' + lock.id);
  let found = true; // what comes first was so before: its time is that of looking
  watching.addEventListener('open', () => { found = true; });
  watching.addEventListener('change', e => {
    const c = JSON.parse(e.data);
    const name = c.owner || c.other || 'somebody who left no name';
    const state = c.lingers ? 'left by ' + name + ', and nobody runs it' : c.state === 'held' ? 'held by ' + name : c.state;
    let text = (found ? 'looked at ' : 'changed at ') + clock(c.time).slice(11) + ': ' + state;
    found = false;
    if (c.fence) text += ', fence ' + c.fence;
    if (c.error) text += ', ' + c.error;
    $('changes').prepend(make('li', text));
    while ($('changes').children.length > 200) $('changes').lastChild.remove();
  });
}

function drawDetail() {
  const lock = rows.get(open);
  put($('detail-key'), openKey);
  put($('detail-text'), !lock ? 'Nobody holds it any more, and nobody waits for it.' :
    (lock.kind || 'free') + (lock.held || lock.kind === 'permits' ? ', held by ' : ', on too few masters, of ') + lock.holder + (lock.fence ? ', fence ' + lock.fence : '') +
    (lock.since === null ? '' : ', taken at ' + clock(lock.since) + ', about') +
    (lock.silent ? '. No answer from ' + lock.silent.join(', ') : ''));
  list($('holders'), lock ? lock.holders : [], h => {
    const ends = h.ends === null ? 'no end' : left(h.ends) + ' left';
    return (h.permit ? h.permit + ': ' : '') + h.name + (h.revoked ? ', revoked: ' + h.reason : '') +
      ', on ' + h.masters + (h.masters === 1 ? ' master, ' : ' masters, ') + ends;
  });
  list($('waiters'), lock ? lock.waiters : [], w => w.name + ', for ' + ((Date.now() - skew - w.since) / 1000).toFixed(1) + 's');
  $('revocation').hidden = !about.revoke;
  $('revoke').disabled = !lock || !lock.held || lock.kind === 'other';
}

function list(node, all, text) {
  while (node.children.length > all.length) node.lastChild.remove();
  while (node.children.length < all.length) node.append(make('li'));
  all.forEach((one, i) => put(node.children[i], text(one)));
}

$('detail').addEventListener('close', () => {
  if ($('detail').open) return; // the event comes late: it shows the next lock by now
  if (watching) watching.close();
  watching = null;
  for (const tr of $('rows').rows) if (tr.dataset.id === open) tr.cells[0].firstChild.focus();
  open = null;
});

$('revoke').addEventListener('click', async () => {
  const lock = rows.get(open);
  if (!lock) return;
  const holders = lock.holders.filter(h => h.held).map(h => h.id); // those who are shown, and nobody who comes now
  $('revoke-said').textContent = 'asking the masters';
  try {
    const r = await fetch('revoke', {method: 'POST', headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({row: lock.id, holders, reason: $('reason').value})});
    const said = await r.json();
    $('revoke-said').textContent = r.ok ? 'It is revoked.' : said.error;
  } catch (e) {
    $('revoke-said').textContent = String(e);
  }
});

// Masters, what is wrong with them, and clients.

function drawMasters(all) {
  const up = all.filter(m => m.phase === 'up').length;
  $('masters-count').textContent = up + ' of ' + all.length + ' up, ' + about.quorum + ' needed';
  $('masters-count').className = up < about.quorum ? 'bad' : up < all.length ? 'warn' : '';
  const body = $('masters');
  while (body.rows.length > all.length) body.lastChild.remove();
  while (body.rows.length < all.length) {
    const tr = make('tr');
    for (let i = 0; i < 7; i++) tr.append(make('td', undefined, i > 1 && i < 6 ? 'n' : ''));
    body.append(tr);
  }
  all.forEach((m, i) => {
    const cells = body.rows[i].cells;
    [m.master, m.phase, m.rtt, String(m.failures), String(m.owed), String(m.debts), m.notifies ? 'yes' : 'no'].forEach((text, j) => put(cells[j], text));
    cells[1].className = m.phase === 'up' ? 'good' : 'bad';
    cells[1].title = m.error || '';
  });
}

function drawFindings(all) {
  $('findings').replaceChildren(...all.map(f => {
    const li = make('li');
    li.append(make('strong', f.level + ' ', f.level === 'wrong' ? 'bad' : 'warn'), make('span', f.on.join(', ') + ' ' + f.what), make('p', f.remedy));
    return li;
  }));
}

function drawClients(c) {
  $('clients-count').textContent = c.clients.length + (c.silent ? ', not told by ' + c.silent.join(', ') : '');
  $('clients').replaceChildren(...c.clients.map(one => {
    const tr = make('tr');
    tr.append(make('td', one.name), make('td', one.program), make('td', one.version), make('td', one.masters + ' of ' + c.masters, 'n'),
      make('td', one.list, one.odd ? 'bad' : ''));
    tr.cells[0].title = one.from.join(', ');
    if (one.odd) tr.cells[4].title = 'most clients have another list of masters';
    return tr;
  }));
}

const events = new EventSource('events');
const on = (name, f) => events.addEventListener(name, e => f(JSON.parse(e.data)));
events.addEventListener('open', () => { $('state').textContent = 'live'; $('state').className = 'good'; });
events.addEventListener('error', () => { $('state').textContent = 'not connected: what you see may be over'; $('state').className = 'bad'; });
on('about', a => {
  about = a;
  document.title = 'redlock' + (a.pattern ? ' ' + a.pattern : '');
});
on('masters', drawMasters);
on('findings', drawFindings);
on('clients', drawClients);
on('list', l => {
  skew = Date.now() - l.now;
  listed = l.listed;
  $('list-error').hidden = l.error === '';
  $('list-error').textContent = l.error;
  $('list-error').className = l.complete ? 'warn' : 'bad';
});
on('locks', m => {
  skew = Date.now() - m.now;
  if (m.reset) rows.clear();
  for (const lock of m.set || []) rows.set(lock.id, lock);
  for (const id of m.gone || []) rows.delete(id);
  stale = true;
  draw();
});
const heads = $('locks').tHead.rows[0].cells;
[...heads].forEach((th, i) => th.firstChild.addEventListener('click', () => {
  backwards = i === sortBy && !backwards;
  heads[sortBy].removeAttribute('aria-sort');
  sortBy = i;
  th.setAttribute('aria-sort', backwards ? 'descending' : 'ascending');
  stale = true;
  $('scroll').scrollTop = 0;
  draw();
}));
$('filter').addEventListener('input', () => { stale = true; $('scroll').scrollTop = 0; draw(); });
$('scroll').addEventListener('scroll', draw, {passive: true});
window.addEventListener('resize', draw);
setInterval(() => { if (!document.hidden) draw(); }, 200); // the time that is left
