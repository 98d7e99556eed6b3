'use strict';
performance.mark('read');
// The page draws what stands in it, and asks nobody for anything. All text goes through textContent.

const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const who = p => data.parties[p].name;

function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function put(node, text) { if (node.textContent !== text) node.textContent = text; }

// Times are as in the text: the time of day in UTC, and durations in the way of Go.

const date = t => new Date((data.zero + t) / 1000).toISOString();
const clock = t => date(t).slice(11, 23);

function short(us) {
  us = Math.abs(us);
  if (us >= 60e6) {
    const s = Math.round(us / 1e6), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
    return (h ? h + 'h' : '') + (m ? m + 'm' : '') + (s % 60 ? (h && !m ? '0m' : '') + s % 60 + 's' : '');
  }
  if (us >= 1e6) return String(Math.round(us / 1e4) / 100) + 's';
  if (us >= 1e4) return Math.round(us / 1e3) + 'ms';
  if (us >= 1e3) return String(Math.round(us / 100) / 10) + 'ms';
  return Math.round(us) + 'µs';
}

const list = all => all.length < 2 ? all.join() : all.slice(0, -1).join(', ') + ' and ' + all[all.length - 1];

// Rows have things, by their beginning. A thing has a kind, a time in which it was, and what the data say of it.

const rows = [];

function newRow(row) {
  const things = row.things;
  things.sort((a, b) => a.from - b.from || a.to - b.to);
  row.reach = new Float64Array(things.length); // the latest end of a thing and all before it
  things.forEach((t, i) => row.reach[i] = Math.max(t.to, i > 0 ? row.reach[i - 1] : -Infinity));
  row.find = (row.label + ' ' + row.by).toLowerCase();
  rows.push(row);
}

function collect() {
  const keys = data.keys.map(() => ({parties: new Map(), both: [], lost: false}));
  const lane = (k, p) => {
    const lanes = keys[k].parties;
    if (!lanes.has(p)) lanes.set(p, []);
    return lanes.get(p);
  };
  const masters = data.masters.map(() => []);
  const voted = x => {
    for (const [i, e] of Object.entries(x.errors || {})) {
      const m = data.parties[x.party].masters[i];
      if (m !== undefined) masters[m].push({kind: 'vote', from: x.at, to: x.at, x, error: e});
    }
  };
  for (const x of data.holds) {
    for (const k of x.keys) {
      lane(k, x.party).push({kind: 'hold', from: x.at, to: Math.max(x.ended, x.told || 0), x, key: k});
      keys[k].lost = keys[k].lost || x.how === 'lost';
    }
    voted(x);
  }
  for (const x of data.waits) lane(x.key, x.party).push({kind: 'wait', from: x.from, to: x.to, x, key: x.key});
  for (const x of data.rounds) {
    for (const k of x.keys) lane(k, x.party).push({kind: 'round', from: x.at, to: x.at, x, key: k});
    voted(x);
  }
  for (const x of data.both) keys[x.key].both.push({kind: 'both', from: x.from, to: x.to, x, key: x.key});

  const latest = new Map(); // by master and party, the phase that lasts
  const runs = new Map();   // by master, the process of its server
  for (const x of data.seen) {
    const things = masters[x.master];
    if (x.run && runs.has(x.master) && runs.get(x.master) !== x.run) things.push({kind: 'restart', from: x.at, to: x.at, x});
    if (x.run) runs.set(x.master, x.run);
    if (!x.phase) {
      things.push({kind: 'asked', from: x.at, to: x.at, x});
      continue;
    }
    const id = x.master + ' ' + x.party;
    if (latest.has(id)) latest.get(id).to = x.at;
    latest.delete(id);
    if (x.phase === 'left') continue; // the client has ended, or has given the master's place to another
    const thing = {kind: 'phase', from: x.at, to: Math.max(x.at, data.parties[x.party].end), x};
    latest.set(id, thing);
    things.push(thing);
  }

  const addKey = (key, k) => {
    const parties = [...key.parties], alarmed = key.both.length > 0;
    const holds = parties.flatMap(([, things]) => parties.length > 1 ? things.filter(t => t.kind === 'hold') : things);
    const by = parties.length > 1 ? parties.length + ' clients' : parties.length ? who(parties[0][0]) : '';
    newRow({label: data.keys[k], by, key: k, things: [...holds, ...key.both], both: key.both, alarmed, of: data.keys[k]});
    if (parties.length < 2) return;
    parties.sort((a, b) => who(a[0]) < who(b[0]) ? -1 : 1);
    for (const [p, things] of parties) newRow({label: who(p), by: '', key: k, lane: true, things, both: key.both, alarmed: false, of: data.keys[k]});
  };
  const head = text => newRow({label: text, by: '', head: true, things: [], both: []});
  const all = keys.map((key, k) => [key, k]);
  const bad = all.filter(([key]) => key.both.length > 0).sort((a, b) => a[0].both[0].from - b[0].both[0].from);
  const lost = all.filter(([key]) => key.both.length === 0 && key.lost);
  const rest = all.filter(([key]) => key.both.length === 0 && !key.lost);
  for (const [text, part] of [['Locks that two had at once', bad], ['Locks that were lost', lost]]) {
    if (part.length) head(text);
    for (const [key, k] of part) addKey(key, k);
  }
  if (data.masters.length) head('Masters');
  data.masters.forEach((m, i) => newRow({label: m, by: '', master: i, things: masters[i], both: []}));
  if (rest.length) head(bad.length + lost.length ? 'Other locks' : 'Locks');
  for (const [key, k] of rest) addKey(key, k);
}
collect();

// What a thing says.

const saids = new Map(Object.entries({held: 'another has it', not_held: 'it did not have it any more', no_quorum: 'too few masters answered', refused: 'too many masters refused',
  expired: 'the masters answered too late', second: 'the second lock failed', error: 'it failed', revoked: 'it was revoked', ok: 'yes'}));
const said = x => saids.get(x.said) || x.said;

function tell(t) {
  const x = t.x, name = x.party === undefined ? '' : who(x.party), key = t.key === undefined ? '' : '"' + data.keys[t.key] + '"';
  switch (t.kind) {
  case 'both': return data.texts[x.text];
  case 'hold': {
    const what = x.holders === 0 ? key + ' as a reader' : x.holders > 1 ? 'one of ' + x.holders + ' permits of ' + key : key;
    const how = new Map([['released', ', and released it'], ['lost', ', and lost it'], ['expired', ', until its validity ended'], ['handed over', ', and handed it over']]).get(x.how);
    const late = x.told > x.ended ? '. It was told ' + short(x.told - x.ended) + ' later' : '';
    const most = ' at the most: ' + (x.gap ? 'events are missing, and what became of it is not known' : 'the record ends before');
    return name + ' had ' + what + ' for ' + short(x.ended - x.at) + (how && !x.gap ? how : most) + late + '.';
  }
  case 'wait': return name + ' waited ' + short(x.to - x.from) + ' for ' + key + (x.said === 'ok' ? ', and took it.' : ', and did not get it: ' + said(x) + '.');
  case 'round': {
    const ok = x.said === 'ok';
    switch (x.op) {
    case 'lock': return name + ' tried to take ' + key + ': ' + said(x) + '.';
    case 'unlock': return name + (ok ? ' released ' + key + '.' : ' was to release ' + key + ': ' + said(x) + '.');
    default: return name + (ok ? ' renewed ' + key + '.' : ' failed to renew ' + key + ': ' + said(x) + '.');
    }
  }
  case 'phase': return data.masters[x.master] + ' was ' + x.phase + ' for ' + short(t.to - t.from) + ', as ' + name + ' sees it' + (x.err ? ' (' + data.texts[x.err] + ')' : '') + '.';
  case 'asked': return name + ' asked ' + data.masters[x.master] + ' who it is' + (x.err ? ': ' + data.texts[x.err] : '') + '.';
  case 'restart': return data.masters[x.master] + ' is another process than before, as ' + name + ' sees it: its server was restarted' +
    (/^(sentinel|cluster)s?:/.test(data.masters[x.master]) ? ', or another server took the place.' : '.');
  case 'vote': return 'It gave ' + name + ' no vote: ' + (data.texts[t.error] || 'without a reason') + '.';
  }
}

// votes says what each master has said to a round.
function votes(x) {
  const words = {y: 'yes', n: 'no', p: 'no answer in time'};
  return [...x.votes || ''].map((v, i) => {
    const m = data.parties[x.party].masters[i];
    const e = (x.errors || {})[i];
    return (m === undefined ? '?' : data.masters[m]) + ': ' + (words[v] || 'failed' + (e ? ': ' + data.texts[e] : ''));
  });
}

// details are what else there is to say.
function details(t) {
  const x = t.x, all = [];
  if (t.kind === 'hold') {
    all.push('It was asked for at ' + clock(x.from) + ', taken at ' + clock(x.at) + ', and valid until ' + clock(x.until) + '.');
    if (x.told > x.ended) all.push('It went on until ' + clock(x.told) + '.');
    if (x.fence) all.push('Its fence is ' + x.fence + '.');
    if (x.keys.length > 1) all.push('It is one lock on ' + list(x.keys.map(k => data.keys[k])) + '.');
  }
  if (t.kind === 'round' && x.from < x.at) all.push('It took ' + short(x.at - x.from) + '.');
  if (x.detail) all.push(data.texts[x.detail]);
  if (t.kind === 'wait' && x.by && x.said !== 'ok') all.push(data.texts[x.by] + ' had it.');
  const placed = x.party !== undefined && data.parties[x.party].placed;
  if (placed) all.push('About this time: ' + placed);
  return all;
}

// The view is what can be seen of the time.

const margin = Math.max(data.end * .02, 10);
const whole = {from: -margin, to: data.end + margin};
const view = {...whole};

function zoom(factor, at) {
  const span = Math.min(Math.max((view.to - view.from) * factor, 20), whole.to - whole.from);
  const share = (at - view.from) / (view.to - view.from);
  look(at - share * span, span);
}

function look(from, span) {
  view.from = Math.max(whole.from, Math.min(from, whole.to - span));
  view.to = view.from + span;
  draw();
}

const middle = () => pick ? Math.max(view.from, Math.min((pick.from + Math.min(pick.to, data.end)) / 2, view.to)) : (view.from + view.to) / 2;

// Only the rows that can be seen are in the document, each with its canvas.

let shown = [];      // rows that the filter leaves
let at = 0;          // the row that the keyboard is in, of these
let pick = null;     // a thing of it
let rowHeight = 28;
let colours = {};
let drawing = false;
const printed = 60;  // rows
let printing = false;

function filter() {
  const part = $('filter').value.toLowerCase();
  shown = part === '' ? rows : rows.filter(r => !r.head && ((r.of || r.label).toLowerCase().includes(part) || r.find.includes(part)));
  at = Math.max(0, shown.findIndex(r => !r.head));
  pick = null;
  put($('shown'), shown.filter(r => !r.head).length + (part === '' ? ' rows' : ' of ' + rows.filter(r => !r.head).length + ' rows'));
}

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawNow(); });
}

function setColours() {
  const probe = make('span');
  document.body.append(probe);
  for (const name of ['back', 'text', 'faint', 'line', 'good', 'warn', 'bad', 'link', 'hold']) {
    probe.style.color = 'var(--' + name + ')';
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  rowHeight = parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'));
}

function drawNow() {
  const scroll = $('scroll'), body = $('rows');
  const head = $('ruler').offsetHeight;
  const most = printing ? Math.min(printed, shown.length) : shown.length;
  body.style.height = most * rowHeight + 'px'; // from which follows how many can be seen
  const visible = printing ? most : Math.ceil(scroll.clientHeight / rowHeight) + 4;
  const first = printing ? 0 : Math.max(0, Math.min(Math.floor((scroll.scrollTop - head) / rowHeight) - 1, most - visible));
  const last = Math.min(most, first + visible);
  while (body.children.length > last - first) body.lastChild.remove();
  while (body.children.length < last - first) {
    const div = make('div');
    div.append(make('span', '', 'label'), make('canvas'));
    div.firstChild.append(document.createTextNode(''), make('span'));
    body.append(div);
  }
  for (let i = first; i < last; i++) fill(body.children[i - first], shown[i], i);
  if (shown.length) scroll.setAttribute('aria-activedescendant', 'row-' + at);
  else scroll.removeAttribute('aria-activedescendant');
  const canvas = $('ruler').lastChild;
  drawRuler(prepare(canvas), canvas.clientWidth, canvas.clientHeight);
}

function fill(div, row, i) {
  div.id = 'row-' + i;
  div.dataset.at = i;
  div.className = 'row' + (row.head ? ' head' : '') + (row.lane ? ' lane' : '') + (row.alarmed ? ' alarmed' : '');
  div.style.top = i * rowHeight + 'px';
  div.setAttribute('role', row.head ? 'presentation' : 'option');
  div.setAttribute('aria-selected', String(i === at && !row.head));
  div.setAttribute('aria-setsize', shown.length);
  div.setAttribute('aria-posinset', i + 1);
  const n = row.things.length;
  div.setAttribute('aria-label', (row.lane ? row.of + ', ' : '') + row.label + (row.by ? ', ' + row.by : '') + (row.head ? '' : ', ' + n + (n === 1 ? ' event' : ' events')) +
    (row.alarmed ? ', two had it at once' : ''));
  div.title = row.label + (row.by ? ' ' + row.by : '');
  const label = div.firstChild;
  if (label.firstChild.data !== row.label) label.firstChild.data = row.label;
  put(label.lastChild, row.by ? ' ' + row.by : '');
  if (row.head) return;
  const canvas = div.lastChild;
  drawRow(prepare(canvas), row, canvas.clientWidth, canvas.clientHeight);
}

// prepare makes a canvas as sharp as the screen, and empties it.
function prepare(canvas) {
  const scale = window.devicePixelRatio || 1, w = Math.round(canvas.clientWidth * scale), h = Math.round(canvas.clientHeight * scale);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const g = canvas.getContext('2d');
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return g;
}

// firstOf is the first thing of a row that does not end before a time.
function firstOf(row, time) {
  let low = 0, high = row.things.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (row.reach[mid] < time) low = mid + 1;
    else high = mid;
  }
  return low;
}

function drawRow(g, row, w, h) {
  const scale = w / (view.to - view.from);
  const place = t => Math.round(Math.max(-50, Math.min((t - view.from) * scale, w + 50)));
  const seen = [], last = {}; // the end of what was drawn of a look: what would hide behind it is not drawn
  for (let i = firstOf(row, view.from); i < row.things.length && row.things[i].from <= view.to; i++) {
    const t = row.things[i], look = lookOf(t);
    if (t.to < view.from || !look) continue;
    const from = place(t.from), to = Math.max(place(t.to), from + 1);
    if (t.kind === 'hold' && t.x.how === 'lost') seen.push([looks.lost, t, place(t.x.ended), place(t.x.ended)]);
    const key = look.layer + look.name;
    if (t !== pick && last[key] !== undefined && Math.ceil(to) <= last[key] + (look.apart || 0)) continue;
    last[key] = Math.ceil(to);
    seen.push([look, t, from, to]);
  }
  seen.sort((a, b) => a[0].layer - b[0].layer);
  for (const [look, t, from, to] of seen) look.paint(g, from, to, h, t, place);
  if (row.lane) for (const t of row.both) if (t.to >= view.from && t.from <= view.to) looks.both.paint(g, place(t.from), place(t.to), h, t, place);
  if (pick && row.things.includes(pick)) {
    const from = place(pick.from), to = Math.max(place(pick.to), from + 1);
    g.strokeStyle = colours.text;
    g.lineWidth = 2;
    g.strokeRect(from - 3, 2, to - from + 6, h - 4);
  }
}

// A look is how a thing is drawn: by its form, and not by its colour alone. Those of a higher layer are drawn over the others.
const looks = {
  hold: {name: 'hold', layer: 1, paint(g, from, to, h, t, place) {
    const end = t ? Math.max(place(t.x.ended), from + 3) : to;
    g.fillStyle = colours.hold;
    g.fillRect(from, h / 2 - 6, end - from, 12);
    if (t && (!t.x.how || t.x.gap)) { // nobody knows when it ended
      for (let i = 0; i < 4; i++) g.clearRect(end - 4 * i - 2, h / 2 - 6, 2, 12);
    } else if (end - from > 4) {
      g.clearRect(end - 1, h / 2 - 6, 1, 12); // the next one may begin there
    }
    if (t && t.x.told > t.x.ended) looks.late.paint(g, end, place(t.x.told), h);
  }},
  late: {name: 'late', layer: 1, paint(g, from, to, h) {
    g.strokeStyle = colours.bad;
    g.lineWidth = 1.5;
    g.beginPath();
    for (let x = from; x < to; x += 4) {
      g.moveTo(x, h / 2 + 5);
      g.lineTo(Math.min(x + 4, to), h / 2 - 5);
    }
    g.stroke();
  }},
  lost: {name: 'lost', layer: 4, paint(g, from, to, h) {
    for (const [colour, width] of [[colours.back, 6], [colours.bad, 2.5]]) { // so that it shows on any bar
      g.strokeStyle = colour;
      g.lineWidth = width;
      g.beginPath();
      for (const d of [6, -6]) {
        g.moveTo(from - 6, h / 2 - d);
        g.lineTo(from + 6, h / 2 + d);
      }
      g.stroke();
    }
  }},
  wait: {name: 'wait', layer: 2, paint(g, from, to, h) {
    g.strokeStyle = colours.warn;
    g.lineWidth = 1.5;
    g.setLineDash([4, 3]);
    g.beginPath();
    g.moveTo(from, h / 2);
    g.lineTo(to, h / 2);
    g.stroke();
    g.setLineDash([]);
    g.beginPath();
    for (const x of [from, to]) {
      g.moveTo(x, h / 2 - 4);
      g.lineTo(x, h / 2 + 4);
    }
    g.stroke();
  }},
  renewal: {name: 'renewal', layer: 3, apart: 3, paint(g, from, to, h) {
    g.fillStyle = colours.good;
    g.fillRect(from - 1, h / 2 - 9, 2, 9);
  }},
  release: {name: 'release', layer: 3, apart: 3, paint(g, from, to, h) {
    g.fillStyle = colours.faint;
    g.fillRect(from - .5, h / 2 + 1, 1.5, 9);
  }},
  refused: {name: 'refused', layer: 3, apart: 3, paint(g, from, to, h) {
    g.fillStyle = colours.faint;
    g.beginPath();
    g.arc(from, h / 2 + 9, 2, 0, 7);
    g.fill();
  }},
  failed: {name: 'failed', layer: 4, paint(g, from, to, h) {
    g.fillStyle = colours.bad;
    g.beginPath();
    g.moveTo(from - 5, h / 2 + 11);
    g.lineTo(from + 5, h / 2 + 11);
    g.lineTo(from, h / 2 + 2);
    g.fill();
  }},
  both: {name: 'both', layer: 5, paint(g, from, to, h) {
    to = Math.max(to, from + 6); // it must not be overlooked
    g.globalAlpha = .25;
    g.fillStyle = colours.bad;
    g.fillRect(from, 0, to - from, h);
    g.globalAlpha = 1;
    g.fillRect(from, 0, to - from, 3);
    g.fillRect(from, h - 3, to - from, 3);
    g.fillRect(from, 0, 1.5, h);
    g.fillRect(to - 1.5, 0, 1.5, h);
  }},
  up: {name: 'up', layer: 0, paint(g, from, to, h) {
    g.fillStyle = colours.good;
    g.fillRect(from, h / 2 - 1, to - from, 2);
  }},
  away: {name: 'away', layer: 1, paint(g, from, to, h) {
    g.fillStyle = colours.bad;
    g.fillRect(from, h / 2 - 7, Math.max(to - from, 2), 14);
  }},
  limited: {name: 'limited', layer: 1, paint(g, from, to, h) {
    g.fillStyle = colours.warn;
    g.fillRect(from, h / 2 - 4, Math.max(to - from, 2), 8);
  }},
  asked: {name: 'asked', layer: 2, apart: 3, paint(g, from, to, h) {
    g.fillStyle = colours.faint;
    g.fillRect(from - .5, h / 2 - 8, 1.5, 16);
  }},
  restart: {name: 'restart', layer: 4, paint(g, from, to, h) {
    g.fillStyle = colours.text;
    g.beginPath();
    g.moveTo(from, h / 2 - 8);
    g.lineTo(from + 6, h / 2);
    g.lineTo(from, h / 2 + 8);
    g.lineTo(from - 6, h / 2);
    g.fill();
  }},
};

const phases = new Map([['up', looks.up], ['dialing', looks.limited], ['quarantined', looks.limited]]);

function lookOf(t) {
  switch (t.kind) {
  case 'round':
    if (t.x.said === 'held') return looks.refused;
    if (t.x.said !== 'ok') return looks.failed;
    return t.x.op === 'unlock' ? looks.release : looks.renewal;
  case 'phase': return phases.get(t.x.phase) || looks.away;
  case 'vote': return looks.failed;
  }
  return looks[t.kind];
}

function drawRuler(g, w, h) {
  const span = view.to - view.from, room = 110; // pixels for one label
  const units = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 6e7, 6e8, 36e8, 864e8];
  let step = 864e9;
  for (const u of units) {
    const n = [1, 2, 5].find(n => u * n * w / span >= room && (u < 6e7 || n !== 5 || u * 5 % 6e7 === 0));
    if (n) {
      step = u * n;
      break;
    }
  }
  g.font = '12px system-ui, sans-serif';
  g.textBaseline = 'middle';
  const begin = Math.ceil((data.zero + view.from) / step) * step - data.zero;
  for (let t = begin; t <= view.to; t += step) {
    const x = (t - view.from) * w / span, us = ((data.zero + Math.round(t)) % 1e6 + 1e6) % 1e6;
    g.fillStyle = colours.line;
    g.fillRect(x, 0, 1, h);
    g.fillStyle = colours.faint;
    const day = date(t);
    g.fillText(step >= 36e8 ? day.slice(5, 10) + ' ' + day.slice(11, 16) : step >= 1e6 ? day.slice(11, 19) : step >= 1e3 ? clock(t) : day.slice(14, 19) + '.' + String(us).padStart(6, '0'), x + 4, h / 2);
  }
}

function drawLegend() {
  for (const canvas of $('legend').querySelectorAll('canvas')) {
    const g = prepare(canvas), name = canvas.dataset.thing, w = canvas.clientWidth, h = canvas.clientHeight;
    if (name === 'open') looks.hold.paint(g, 1, w - 2, h, {x: {ended: w - 2}}, x => x);
    else if (['hold', 'both', 'wait', 'late', 'up', 'away', 'limited'].includes(name)) looks[name].paint(g, 1, w - 2, h);
    else looks[name].paint(g, w / 2, w / 2, h);
  }
}

// Going about.

// reveal brings the row that the keyboard is in, and its thing, into what can be seen.
function reveal() {
  const scroll = $('scroll'), head = $('ruler').offsetHeight, top = at * rowHeight;
  if (top < scroll.scrollTop) scroll.scrollTop = at <= 1 ? 0 : top;
  else if (top + rowHeight + head > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + rowHeight + head - scroll.clientHeight;
  const span = view.to - view.from;
  if (pick && (pick.to < view.from || pick.from > view.to)) look(pick.from - span / 2, span);
  put($('now'), pick ? clock(pick.from) + ' ' + tell(pick) : '');
  drawNow();
}

function goRow(to, by) {
  to = Math.max(0, Math.min(shown.length - 1, to));
  while (shown[to] && shown[to].head) { // nothing is to be seen there
    const next = to + (by < 0 ? -1 : 1);
    if (!shown[next]) return reveal();
    to = next;
  }
  at = to;
  pick = null;
  reveal();
}

function goThing(by) {
  const things = shown[at] ? shown[at].things : [];
  if (!things.length) return;
  let i = things.indexOf(pick);
  if (i < 0) i = Math.min(firstOf(shown[at], view.from), things.length - 1);
  else i = Math.max(0, Math.min(things.length - 1, i + by));
  if (by === -Infinity) i = 0;
  if (by === Infinity) i = things.length - 1;
  pick = things[i];
  reveal();
}

$('scroll').addEventListener('keydown', e => {
  if (e.altKey || e.metaKey) return;
  switch ((e.ctrlKey ? 'ctrl ' : '') + e.key) {
  case 'ArrowDown': goRow(at + 1, 1); break;
  case 'ArrowUp': goRow(at - 1, -1); break;
  case 'PageDown': goRow(at + 10, 1); break;
  case 'PageUp': goRow(at - 10, -1); break;
  case 'ctrl Home': goRow(0, 1); break;
  case 'ctrl End': goRow(shown.length - 1, -1); break;
  case 'ArrowRight': goThing(1); break;
  case 'ArrowLeft': goThing(-1); break;
  case 'Home': goThing(-Infinity); break;
  case 'End': goThing(Infinity); break;
  case 'Enter': case ' ': show(); break;
  case 'Escape': pick = null; reveal(); break;
  default: return;
  }
  e.preventDefault();
});

document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.altKey || e.metaKey || e.target.tagName === 'INPUT' || $('detail').open) return;
  switch (e.key) {
  case '+': case '=': zoom(.5, middle()); break;
  case '-': zoom(2, middle()); break;
  case '0': look(whole.from, whole.to - whole.from); break;
  default: return;
  }
  e.preventDefault();
});
$('in').addEventListener('click', () => zoom(.5, middle()));
$('out').addEventListener('click', () => zoom(2, middle()));
$('whole').addEventListener('click', () => look(whole.from, whole.to - whole.from));
$('filter').addEventListener('input', () => { filter(); $('scroll').scrollTop = 0; reveal(); });
$('scroll').addEventListener('scroll', draw, {passive: true});

// One or two fingers, or the mouse, move what is seen. timeAt is where the x of an event is.

const fingers = new Map();
let moved = false;
const canvasOf = () => $('ruler').lastChild.getBoundingClientRect();
const timeAt = x => view.from + (x - canvasOf().left) / canvasOf().width * (view.to - view.from);

$('scroll').addEventListener('pointerdown', e => {
  if (e.button !== 0 || e.target.tagName !== 'CANVAS') return;
  if (fingers.size === 0) moved = false;
  fingers.set(e.pointerId, e.clientX);
});
window.addEventListener('pointermove', e => {
  if (!fingers.has(e.pointerId)) return;
  const before = [...fingers.values()], was = fingers.get(e.pointerId);
  if (before.length === 1) {
    if (!moved && Math.abs(e.clientX - was) < 4) return;
    moved = true;
    fingers.set(e.pointerId, e.clientX);
    look(view.from - (e.clientX - was) / canvasOf().width * (view.to - view.from), view.to - view.from);
    return;
  }
  fingers.set(e.pointerId, e.clientX);
  const now = [...fingers.values()], gap = Math.abs(now[0] - now[1]);
  moved = true;
  if (gap > 10) zoom(Math.abs(before[0] - before[1]) / gap, timeAt((now[0] + now[1]) / 2));
});
for (const name of ['pointerup', 'pointercancel']) window.addEventListener(name, e => fingers.delete(e.pointerId));
$('scroll').addEventListener('wheel', e => {
  if (e.ctrlKey) { // or two fingers on a pad
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : .8, timeAt(e.clientX));
  } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    e.preventDefault();
    look(view.from + e.deltaX / canvasOf().width * (view.to - view.from), view.to - view.from);
  }
}, {passive: false});

$('rows').addEventListener('click', e => {
  const div = e.target.closest('.row');
  if (!div || moved || shown[div.dataset.at].head) return;
  at = Number(div.dataset.at);
  pick = e.target.tagName === 'CANVAS' ? nearest(shown[at], e.clientX) : null;
  reveal();
  show();
});

// nearest is the thing of a row that was meant by a click: the one of the least extent that is no more than a finger's
// breadth away.
function nearest(row, x) {
  const us = (view.to - view.from) / canvasOf().width, time = timeAt(x);
  let best = null, least = Infinity;
  for (let i = firstOf(row, time - 12 * us); i < row.things.length && row.things[i].from <= time + 12 * us; i++) {
    const t = row.things[i], off = Math.max(t.from - time, time - t.to, 0) / us;
    const worth = off * 4 + Math.min((t.to - t.from) / us, 1e4) / 10;
    if (off <= 12 && worth < least) [best, least] = [t, worth];
  }
  return best;
}

// One row, and one event of it.

const neighbours = 50; // that are listed to each side

function show() {
  const row = shown[at];
  if (!row || row.head) return;
  put($('detail-head'), (row.lane ? row.of + ', ' : '') + row.label + (row.by ? ', ' + row.by : ''));
  fillDetail(row);
  if (!$('detail').open) $('detail').showModal();
}

function fillDetail(row) {
  put($('detail-text'), pick ? [date(pick.from).slice(0, 10) + ' ' + clock(pick.from) + ' ' + tell(pick), ...details(pick)].join('\n') : '');
  $('votes').replaceChildren(...(pick && pick.x.votes ? votes(pick.x).map(text => make('li', text)) : []));
  const both = row.both.filter(t => t !== pick && (!pick || t.from <= pick.to && t.to >= pick.from)).slice(0, neighbours);
  $('detail-findings').replaceChildren(...both.map(t => make('li', clock(t.from) + ' ' + tell(t))));
  const i = Math.max(0, row.things.indexOf(pick)), first = Math.max(0, i - neighbours), part = row.things.slice(first, i + neighbours);
  put($('events-head'), 'Events of this row' + (part.length < row.things.length ? ': ' + (first + 1) + ' to ' + (first + part.length) + ' of ' + row.things.length : ''));
  $('events').replaceChildren(...part.map(t => {
    const li = make('li', undefined, t.kind === 'both' ? 'mark' : '');
    const button = make('button', 'Show');
    button.setAttribute('aria-label', 'Show what was at ' + clock(t.from));
    button.addEventListener('click', () => {
      pick = t;
      reveal();
      fillDetail(row);
      $('detail').scrollTop = 0;
      $('detail-head').focus();
    });
    li.append(make('time', clock(t.from)), make('span', tell(t)), button);
    return li;
  }));
}

$('detail').addEventListener('close', () => $('scroll').focus({preventScroll: true})); // it was in sight, or the user has gone elsewhere since

// What is remarkable leads to its place.
for (const li of document.querySelectorAll('main section li[data-at]')) {
  const key = Number(li.dataset.key), time = Number(li.dataset.at);
  if (time < whole.from || time > whole.to) continue;
  const button = make('button', 'Show');
  button.setAttribute('aria-label', 'Show in the timeline what was at ' + clock(time));
  button.addEventListener('click', () => {
    $('filter').value = '';
    filter();
    const i = shown.findIndex(r => r.key === key);
    if (i >= 0) at = i;
    const things = i >= 0 ? shown[i].things : [];
    pick = things.find(t => t.kind === 'both' && t.from === time) || things.find(t => t.kind === 'hold' && (t.x.ended === time || t.from === time)) || null;
    const span = Math.max(pick ? (Math.min(pick.to, data.end) - pick.from) * 4 : 0, (whole.to - whole.from) / 50, 1000);
    look(time - span / 2, Math.min(span, whole.to - whole.from));
    reveal();
    $('timeline').scrollIntoView({block: 'start'});
    $('scroll').focus({preventScroll: true});
  });
  li.append(button);
}

function redraw() {
  setColours();
  drawLegend();
  drawNow();
}

function print(on) {
  printing = on;
  document.documentElement.classList.toggle('printing', on);
  $('unprinted').hidden = !on || shown.length <= printed;
  put($('unprinted'), 'Of ' + shown.length + ' rows, the first ' + printed + ' are printed.');
  redraw();
}
window.addEventListener('beforeprint', () => print(true));
window.addEventListener('afterprint', () => print(false));
window.addEventListener('resize', () => { if (!printing) redraw(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);

if (rows.length) {
  $('timeline').hidden = false;
  filter();
  redraw();
}
performance.mark('drawn');
