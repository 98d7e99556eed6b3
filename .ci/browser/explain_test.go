package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	chromepage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A recorded is a client with its flight record.
type recorded struct {
	*redlock.Client
	file string
	rec  *flight.Recorder
}

func record(t *testing.T, masters []string, owner string) *recorded {
	t.Helper()
	r := &recorded{file: filepath.Join(t.TempDir(), "record")}
	var err error
	r.rec, err = flight.New(flight.Options{File: r.file, NoQuestions: true})
	require.NoError(t, err)
	cfg, err := r.rec.Attach(redlock.Config{Masters: masters, Owner: owner})
	require.NoError(t, err)
	r.Client, err = redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); r.rec.Close() })
	return r
}

func (r *recorded) takes(t *testing.T, key string, opts ...redlock.Option) *redlock.Mutex {
	t.Helper()
	m := r.NewMutex(key, time.Hour, opts...)
	require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, patient, time.Millisecond)
	return m
}

// overlap has two clients have a lock at once, as their lists of masters differ.
func overlap(t *testing.T, masters *redlocktest.Masters, key, owner string) (a, b *recorded) {
	t.Helper()
	a, b = record(t, masters.Addrs()[:3], owner), record(t, masters.Addrs()[3:], "b@web-2")
	first := a.takes(t, key, redlock.WithFence())
	second := b.takes(t, key)
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, second.Unlock(t.Context()))
	require.NoError(t, first.Unlock(t.Context()))
	return a, b
}

// explained has redlock explain make a page of records.
func explained(t *testing.T, records []*recorded, args ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "what-happened.html")
	args = append([]string{"explain", "--html", file}, args...)
	for _, r := range records {
		args = append(args, r.file)
	}
	out, err := exec.Command(command, args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 { // two had a lock at once
		require.NoError(t, err, "%s", out)
	}
	return file
}

// reads opens a page that explain has made. It may ask nobody for anything, as show requires of all.
func reads(t *testing.T, file string) *page {
	t.Helper()
	p := show(t, "file://"+file)
	p.await(`performance.getEntriesByName('drawn').length === 1`)
	require.Zero(t, eval[int](p, `performance.getEntriesByType('resource').length`))
	return p
}

// rowOf is an expression for the row of a label.
func rowOf(label string) string {
	return `[...document.querySelectorAll('#rows .row')].find(row => row.firstChild.firstChild.data === ` + quoted(label) + `)`
}

// painted is how many points of a row's canvas have a colour of the page.
func (p *page) painted(label, colour string) int {
	p.Helper()
	return eval[int](p, painted(label, colour))
}

// awaitPainted waits until a row has a colour: what changes is drawn with a later frame.
func (p *page) awaitPainted(label, colour string) {
	p.Helper()
	p.await(painted(label, colour) + " > 0")
}

func painted(label, colour string) string {
	return `(() => {
		const canvas = ` + rowOf(label) + `.lastChild, all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
		const want = colours[` + quoted(colour) + `].match(/\d+/g).map(Number);
		let n = 0;
		for (let i = 0; i < all.length; i += 4) if (all[i + 3] === 255 && want.every((c, j) => all[i + j] === c)) n++;
		return n;
	})()`
}

func TestWhatHappenedIsDrawn(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	a, b := overlap(t, masters, "lock:report", "a@web-1")
	require.NoError(t, a.takes(t, "lock:import").Unlock(t.Context()))
	p := reads(t, explained(t, []*recorded{a, b}))
	require.Contains(t, eval[string](p, `document.querySelector('main > section').innerText`), `b@web-2 took "lock:report" while a@web-1 still had it`)
	labels := eval[string](p, `[...document.querySelectorAll('#rows .row')].map(row => row.firstChild.firstChild.data).join('|')`)
	require.Equal(t, "Locks that two had at once|lock:report|a@web-1|b@web-2|Masters|"+strings.Join(masters.Addrs(), "|")+"|Other locks|lock:import", labels)
	require.Positive(t, p.painted("lock:report", "bad"), "that two had it")
	require.Zero(t, p.painted("lock:import", "bad"))
	for _, label := range []string{"lock:report", "a@web-1", "lock:import"} {
		eval[bool](p, `(() => {
			const t = rows.find(row => row.label === `+quoted(label)+`).things.find(t => t.kind === 'hold');
			Object.assign(view, {from: t.from - 100, to: t.to + 100});
			drawNow();
			return true;
		})()`)
		require.Positive(t, p.painted(label, "hold"), label)
	}
	eval[bool](p, `(Object.assign(view, whole), drawNow(), true)`)
	require.Positive(t, p.painted(masters.Addrs()[0], "good"), "it was up")

	// A click on what two had says so.
	x := eval[float64](p, `(() => {
		const t = rows.find(row => row.label === 'lock:report').both[0], box = canvasOf();
		return box.left + ((t.from + t.to) / 2 - view.from) / (view.to - view.from) * box.width;
	})()`)
	y := eval[float64](p, `(box => box.top + box.height / 2)(`+rowOf("lock:report")+`.getBoundingClientRect())`)
	p.run(chromedp.MouseClickXY(x, y))
	p.await(`document.getElementById('detail').open`)
	require.Contains(t, eval[string](p, `document.getElementById('detail').innerText`), "while a@web-1 still had it")
	p.run(chromedp.KeyEvent(kb.Escape))
	p.await(`!document.getElementById('detail').open && document.activeElement.id === 'scroll'`)

	// What is remarkable leads to its place.
	before := eval[float64](p, `view.to - view.from`)
	p.run(chromedp.Click(chromedp.CSS(".alarm li button")))
	p.await(`document.getElementById('now').textContent.includes('while a@web-1 still had it')`)
	require.Less(t, eval[float64](p, `view.to - view.from`), before)

	// Durations are those of the text.
	require.Equal(t, "999µs 1.2ms 10ms 150ms 1s 1.5s 59.99s 1m 1m1s 1h 1h0m1s 1h1m", eval[string](p,
		`[999, 1234, 10e3, 150e3, 1e6, 1.5e6, 59.99e6, 60e6, 61e6, 3600e6, 3601e6, 3660e6].map(short).join(' ')`))

	// It is printed as well, in light colours.
	p.run(media("", "dark"))
	p.await(`colours.back === 'rgb(20, 23, 28)'`)
	pdf, err := chromedp.Run(p.ctx, func(ctx context.Context, target *chromedp.Target) (chromepage.PrintToPDFResult, error) {
		return cdp.Call(ctx, target, chromepage.PrintToPDF, chromepage.PrintToPDFParams{})
	})
	require.NoError(t, err)
	require.NotEmpty(t, pdf.Data)
	p.await(`colours.back === 'rgb(20, 23, 28)' && !printing`)
	p.run(media("print", "dark"))
	eval[bool](p, `window.dispatchEvent(new Event('beforeprint'))`)
	require.Equal(t, "rgb(255, 255, 255)", eval[string](p, `colours.back`))
	require.Positive(t, p.painted("lock:report", "bad"))
}

// media has the page be shown on paper, or in the dark.
func media(kind, scheme string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: kind,
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return v, err
	}
}

func TestWhatHappenedIsReadByKeyboard(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	a, b := overlap(t, masters, "lock:report", "a@web-1")
	p := reads(t, explained(t, []*recorded{a, b}))
	p.run(chromedp.Focus(chromedp.CSS("#filter")), chromedp.KeyEvent("\t"))
	p.await(`document.activeElement.id === 'scroll'`)
	active := `document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))`
	p.await(active + `.getAttribute('aria-label') === 'lock:report, 2 clients, 3 events, two had it at once'`)
	p.run(chromedp.KeyEvent(kb.ArrowDown))
	p.await(active + `.getAttribute('aria-label').startsWith('lock:report, a@web-1, ')`)
	p.run(chromedp.KeyEvent(kb.ArrowRight))
	p.await(`document.getElementById('now').textContent.includes('a@web-1 had "lock:report" for')`)
	p.run(chromedp.KeyEvent(kb.ArrowRight))
	p.await(`document.getElementById('now').textContent.includes('a@web-1 renewed "lock:report".')`)
	p.run(chromedp.KeyEvent(kb.End))
	p.await(`document.getElementById('now').textContent.includes('a@web-1 released "lock:report".')`)
	p.run(chromedp.KeyEvent(kb.Home), chromedp.KeyEvent(kb.Enter))
	p.await(`document.getElementById('detail').open`)
	text := eval[string](p, `document.getElementById('detail').innerText`)
	require.Contains(t, text, "Its fence is 1")
	require.Regexp(t, `127\.0\.0\.1:\d+: yes`, text)
	require.Contains(t, text, "while a@web-1 still had it")
	p.run(chromedp.KeyEvent(kb.Escape))
	p.await(`!document.getElementById('detail').open && document.activeElement.id === 'scroll'`)

	span := func() float64 { return eval[float64](p, `view.to - view.from`) }
	all := span()
	p.run(chromedp.KeyEvent("+"))
	near := span()
	require.Less(t, near, all)
	p.run(chromedp.KeyEvent("-"))
	require.InDelta(t, all, span(), 1)
	p.run(chromedp.KeyEvent("+"), chromedp.KeyEvent("+"), chromedp.KeyEvent("0"))
	require.InDelta(t, all, span(), 1)
	p.run(chromedp.KeyEvent(kb.ArrowUp), chromedp.KeyEvent(kb.ArrowUp))
	p.await(active + `.getAttribute('aria-label').endsWith('two had it at once')`)
	p.run(chromedp.KeyEvent(kb.Escape))
	p.await(`document.getElementById('now').textContent === ''`)
}

// A key can be any text, and so can an owner. The page of what happened runs no script but its own, and asks nobody.
func TestWhatHappenedIsText(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	const key, owner = `</script><script>document.title='run'</script><img src=x onerror="document.title='run'">&amp;"'<!--`, `<svg/onload="document.title='run'">`
	a, b := overlap(t, masters, key, owner)
	p := reads(t, explained(t, []*recorded{a, b}, "--key", key))
	p.await(rowOf(key) + ` && ` + rowOf(owner))
	require.Equal(t, "What happened to "+key, eval[string](p, `document.title`))
	p.run(chromedp.Focus(chromedp.CSS("#scroll")), chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.Enter))
	p.await(`document.getElementById('detail').open && document.getElementById('detail-head').textContent.includes(` + quoted(key) + `)`)
	require.Zero(t, eval[int](p, `document.querySelectorAll('img, svg, main script, dialog script').length`))
	require.Equal(t, 2, eval[int](p, `document.scripts.length`))

	// The policy holds, whatever a fault of the page might let in.
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	defer server.Close()
	require.Equal(t, "refused", eval[string](p, `fetch('`+server.URL+`/fetch', {mode: 'no-cors'}).then(() => 'sent', () => 'refused')`))
	require.Equal(t, "refused", eval[string](p, `new Promise(done => {
		const img = document.createElement('img');
		img.onload = () => done('sent');
		img.onerror = () => done('refused');
		img.src = '`+server.URL+`/image';
	})`))
	require.Equal(t, "TypeError", eval[string](p, `(() => { try { document.body.innerHTML = '<b>'; return 'taken' } catch (e) { return e.name } })()`))
	require.Equal(t, "refused", eval[string](p, `new Promise(done => {
		document.addEventListener('securitypolicyviolation', e => done('refused'));
		const style = document.createElement('style');
		style.textContent = 'body { background: url(`+server.URL+`/style) }';
		document.head.append(style);
	})`))
	require.Empty(t, asked)
	p.hosts = 2 // what was refused was wanted from the server
}

// Ten thousand events: as many rows as can be seen are in the document, and as much is drawn as can be seen.
func TestTenThousandEventsAreDrawn(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	a, b := overlap(t, masters, "lock:report", "a@web-1")
	for i := range 2500 { // each of which is four
		key := fmt.Sprintf("lock:%03d", i%300)
		m := b.NewMutex(key, time.Minute)
		require.NoError(t, m.TryLock(t.Context()))
		require.ErrorIs(t, b.NewMutex(key, time.Minute).TryLock(t.Context()), redlock.ErrHeld)
		require.NoError(t, m.Extend(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
	}
	require.Eventually(t, func() bool { return b.Stats().EventsWaiting == 0 }, time.Minute, time.Millisecond)
	file := explained(t, []*recorded{a, b})
	p := reads(t, file)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Greater(t, eval[int](p, `data.holds.length + data.waits.length + data.rounds.length`), 10_000)
	t.Logf("%d bytes; drawn %.0f ms after the page was asked for; the script took %.0f ms", info.Size(), eval[float64](p, `performance.getEntriesByName('drawn')[0].startTime`),
		eval[float64](p, `performance.getEntriesByName('drawn')[0].startTime - performance.getEntriesByName('read')[0].startTime`))
	longest := eval[float64](p, `(async () => {
		const scroll = document.getElementById('scroll');
		let longest = 0;
		for (let i = 0; i < 40; i++) {
			scroll.scrollTop = Math.random() * scroll.scrollHeight;
			zoom(i % 5 ? .7 : 5, data.end / 2);
			await new Promise(requestAnimationFrame);
			const began = performance.now();
			drawNow();
			longest = Math.max(longest, performance.now() - began);
		}
		return longest;
	})()`)
	t.Logf("no frame of 40, scrolled and zoomed at random, took longer than %.1f ms", longest)
	require.Less(t, eval[int](p, `document.querySelectorAll('*').length`), 1000, "rows that cannot be seen are not in the document")
	require.Less(t, eval[int](p, `document.querySelectorAll('#rows canvas').length`), 60)
	p.run(chromedp.Focus(chromedp.CSS("#scroll")), chromedp.KeyEvent(kb.End, chromedp.KeyModifiers(2)))
	p.await(rowOf("lock:299") + `?.getAttribute('aria-selected') === 'true'`)
	p.run(chromedp.SetValue(chromedp.CSS("#filter"), "lock:report"))
	eval[bool](p, `document.getElementById('filter').dispatchEvent(new Event('input'))`)
	p.await(`document.querySelectorAll('#rows .row').length === 3`)
}

func TestWhatHappenedOnAPhone(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	key := "lock:" + strings.Repeat("long", 40)
	a, b := overlap(t, masters, key, "a@"+strings.Repeat("web", 40))
	p := reads(t, explained(t, []*recorded{a, b}, "--key", key))
	p.run(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	p.await(`rowHeight === 46 && ` + rowOf(key) + `?.lastChild.clientWidth > 300`)
	require.False(t, eval[bool](p, `document.documentElement.scrollWidth > 360`))
	p.awaitPainted(key, "bad")
	p.run(chromedp.Click(chromedp.CSS("#rows .alarmed canvas")))
	p.await(`document.getElementById('detail').open`)
	require.False(t, eval[bool](p, `document.documentElement.scrollWidth > 360 || document.getElementById('detail').scrollWidth > document.getElementById('detail').clientWidth`))
}

func TestWhatHappenedInTheDark(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	a, b := overlap(t, masters, "lock:report", "a@web-1")
	p := reads(t, explained(t, []*recorded{a, b}))
	for scheme, back := range map[string]string{"dark": "rgb(20, 23, 28)", "light": "rgb(255, 255, 255)"} {
		p.run(media("", scheme))
		p.await(`getComputedStyle(document.body).backgroundColor === '` + back + `' && colours.back === '` + back + `'`)
		p.awaitPainted("lock:report", "bad")
	}
}

// Who reads a page without scripts has all that the text says.
func TestWhatHappenedWithoutScripts(t *testing.T) {
	masters := redlocktest.Start(t, 6)
	a, b := overlap(t, masters, "lock:report", "a@web-1")
	file := explained(t, []*recorded{a, b})
	p := reads(t, file)
	p.run(func(ctx context.Context, target *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, target, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return v, err
	}, chromedp.Navigate("file://"+file+"?without"))
	p.hosts = 2
	text := eval[string](p, `document.body.innerText`)
	require.Contains(t, text, `b@web-2 took "lock:report" while a@web-1 still had it`)
	require.Contains(t, text, "A timeline is drawn where scripts run")
	require.NotContains(t, text, "Zoom")
	require.True(t, eval[bool](p, `document.getElementById('timeline').hidden`))
}

// The page about explain shows this picture. UPDATE=1 takes it anew.
func TestPictureOfWhatHappened(t *testing.T) {
	if os.Getenv("UPDATE") == "" {
		t.Skip("UPDATE is not set")
	}
	masters := redlocktest.Start(t, 3)
	all := map[string]*recorded{}
	var records []*recorded
	for _, owner := range []string{"reports@web-1", "reports@web-2", "billing@web-3", "import@worker-1"} {
		all[owner] = record(t, masters.Addrs(), owner)
		records = append(records, all[owner])
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var work sync.WaitGroup
	for i, w := range []struct{ owner, key string }{
		{"reports@web-1", "lock:report"}, {"reports@web-2", "lock:report"}, {"billing@web-3", "lock:invoices"}, {"import@worker-1", "lock:import"}, {"billing@web-3", "lock:import"},
	} {
		work.Go(func() {
			for ctx.Err() == nil {
				all[w.owner].Do(ctx, w.key, 900*time.Millisecond, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(time.Duration(600+130*i) * time.Millisecond):
					}
					return nil
				})
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	time.Sleep(2 * time.Second)
	masters.Kill(2)
	time.Sleep(time.Second)
	masters.Restart(2)
	time.Sleep(time.Second)
	first := all["reports@web-1"].takes(t, "lock:deploy", redlock.WithFence())
	time.Sleep(500 * time.Millisecond)
	for i := range masters.N() {
		_, err := masters.Do(i, "DEL", "lock:deploy")
		require.NoError(t, err)
	}
	second := all["billing@web-3"].takes(t, "lock:deploy")
	time.Sleep(700 * time.Millisecond)
	first.Unlock(t.Context())
	second.Unlock(t.Context())
	cancel()
	work.Wait()
	p := reads(t, explained(t, records))
	p.run(chromedp.EmulateViewport(1000, 700))
	p.await(`document.querySelectorAll('#rows .row').length > 10`)
	eval[bool](p, `(document.getElementById('timeline').scrollIntoView(), scrollBy(0, -20), true)`)
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("../../redlock/docs/explain.png", picture, 0o644))
}
