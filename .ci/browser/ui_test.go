// Package browser looks at what people see in a browser: the pages of redlock ui and redlock explain.
package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const patient = time.Minute

var command string // the path of redlock

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "browser")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		command = filepath.Join(dir, "redlock")
		build := exec.Command("go", "build", "-o", command, "./redlock/cmd/redlock")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			panic(string(out))
		}
		defer func() { closes() }()
		return m.Run()
	}())
}

// A page is one that a browser shows.
type page struct {
	*testing.T
	ctx   context.Context
	base  string // its address, without the last slash
	hosts int    // that it may ask, and files
}

// opens starts redlock ui for the masters, and opens its page.
func opens(t *testing.T, masters *redlocktest.Masters, args ...string) *page {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ui := exec.CommandContext(ctx, command, append([]string{"ui", "--listen", "127.0.0.1:0", "--masters", strings.Join(masters.Addrs(), ",")}, args...)...)
	ui.Cancel = func() error { return ui.Process.Signal(syscall.SIGTERM) }
	ui.Stderr = os.Stderr
	out, err := ui.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, ui.Start())
	t.Cleanup(func() { cancel(); ui.Wait() })
	var address string
	_, err = fmt.Fscanln(out, &address)
	require.NoError(t, err)
	p := show(t, address)
	p.await(`document.getElementById('state')?.textContent === 'live'`)
	p.base = strings.TrimSuffix(eval[string](p, "location.href"), "/")
	return p
}

// browser is the one that all tests use. Each has pages of its own.
var browser = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		return nil, errors.New("there is no browser: make contrib-tools installs one")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1200, 900), chromedp.WSURLReadTimeout(patient), chromedp.ExecPath(path))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ = chromedp.NewContext(ctx)
	closes = func() {
		chromedp.Cancel(ctx)
		cancel()
	}
	return ctx, chromedp.Do(ctx)
})

var closes = func() {}

// show opens an address.
func show(t *testing.T, address string) *page {
	t.Helper()
	all, err := browser()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(all)
	t.Cleanup(cancel)
	p := &page{T: t, ctx: ctx}
	var asked sync.Map
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("an error on the page: %s", e.ExceptionDetails.Exception.Description)
		case *network.EventRequestWillBeSent:
			switch u, err := url.Parse(e.Request.URL); {
			case err != nil || u.Scheme == "data":
			case u.Scheme == "file":
				asked.Store(e.Request.URL, true)
			default:
				asked.Store(u.Host, true)
			}
		}
	}))
	t.Cleanup(func() {
		count := 0
		asked.Range(func(host, _ any) bool { count++; return true })
		require.LessOrEqual(t, count, p.hosts, "the page asks nobody but its own server")
	})
	p.hosts = 1
	p.run(chromedp.Navigate(address))
	return p
}

func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	require.NoError(p, chromedp.Do(p.ctx, actions...))
}

// eval is the value of an expression on the page, or of its promise.
func eval[T any](p *page, expression string) T {
	p.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(p, err, expression)
	return v
}

// await waits until an expression is true on the page, whatever the page is until then.
func (p *page) await(expression string) {
	p.Helper()
	var seen bool
	var err error
	for until := time.Now().Add(patient); !seen; {
		if seen, err = chromedp.Run(p.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")")); seen {
			return
		}
		if time.Now().After(until) {
			require.Fail(p, expression, "%v; the page: %s", err, eval[string](p, "document.body?.innerText ?? ''"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func quoted(text string) string {
	out, _ := json.Marshal(text)
	return string(out)
}

// row is an expression for the row of a key.
func row(key string) string {
	return `[...document.getElementById('rows').rows].find(tr => tr.cells[0].textContent === ` + quoted(key) + `)`
}

func client(t *testing.T, masters *redlocktest.Masters, owner string) *redlock.Client {
	t.Helper()
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), Owner: owner})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func lock(t *testing.T, c *redlock.Client, key string) *redlock.Mutex {
	t.Helper()
	m := c.NewMutex(key, time.Hour)
	require.NoError(t, m.TryLock(t.Context()))
	return m
}

func TestWhatIsLockedIsShown(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := client(t, masters, "reports@web-3")
	first := lock(t, c, "lock:report")
	p := opens(t, masters)
	p.await(row("lock:report") + `?.cells[1].textContent === 'reports@web-3'`)

	taken := time.Now()
	second := lock(t, c, "lock:import")
	p.await(row("lock:import"))
	t.Logf("a lock that was taken was shown after %v", time.Since(taken).Round(time.Millisecond))
	require.NoError(t, first.Unlock(t.Context()))
	p.await(`!` + row("lock:report"))
	require.NoError(t, second.Unlock(t.Context()))
	p.await(`document.getElementById('none').hidden === false`)
}

func TestAHungMasterIsSeen(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	p := opens(t, masters)
	p.await(`document.getElementById('masters-count').textContent === '3 of 3 up, 2 needed'`)
	masters.Pause(1)
	c := client(t, masters, "")
	lock(t, c, "k")
	p.await(`document.getElementById('masters-count').textContent === '2 of 3 up, 2 needed' && document.getElementById('masters').rows[1].cells[1].className === 'bad'`)
	p.await(row("k"))
	p.await(`document.getElementById('list-error').hidden === false`)
	masters.Pause(2)
	p.await(`/^\d+\.0s old$/.test(document.getElementById('locks-age').textContent)`)
	masters.Resume(2)
	p.await(`document.getElementById('locks-age').textContent === ''`)
	masters.Resume(1)
	p.await(`document.getElementById('masters-count').textContent === '3 of 3 up, 2 needed' && document.getElementById('list-error').hidden`)
}

// A key can be any text, and an owner, and a reason.
func TestHTMLIsText(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	const key, owner = `lock:<img src=x onerror="document.title='run'"></td><script>document.title='run'</script>&amp;"'`, `<svg/onload="document.title='run'">`
	c := client(t, masters, owner)
	lock(t, c, key)
	p := opens(t, masters, "--allow-revoke")
	p.await(row(key) + `?.cells[1].textContent === ` + quoted(owner))
	p.run(chromedp.Click(chromedp.CSS("#rows button")))
	p.await(`document.getElementById('detail-key').textContent === ` + quoted(key) + ` && document.getElementById('changes').children.length > 0`)
	p.revokes(`<img src=x onerror="document.title='run'">`)
	p.await(`document.getElementById('holders').textContent.includes('revoked: <img')`)
	require.False(t, eval[bool](p, `document.title !== 'redlock' || document.querySelector('img, svg, main script, dialog script') !== null`))
}

// revokes fills in what the dialog asks for.
func (p *page) revokes(reason string) {
	p.Helper()
	p.run(chromedp.SetValue(chromedp.CSS("#reason"), reason), chromedp.Click(chromedp.CSS("#revoke")))
}

func TestALockIsRevokedByKeyboard(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := client(t, masters, "night-shift")
	m := lock(t, c, "lock:report")
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	p := opens(t, masters, "--allow-revoke")
	p.await(row("lock:report"))
	p.run(chromedp.Focus(chromedp.CSS("#rows button")), chromedp.KeyEvent("\r"))
	p.await(`document.getElementById('detail').open`)
	p.run(chromedp.Focus(chromedp.CSS("#reason")), chromedp.KeyEvent("maintenance"), chromedp.KeyEvent("\t"), chromedp.KeyEvent("\r"))
	<-held.Done()
	require.ErrorIs(t, context.Cause(held), redlock.ErrRevoked)
	require.ErrorContains(t, context.Cause(held), "maintenance")
	p.await(`document.getElementById('revoke-said').textContent === 'It is revoked.'`)
	p.run(chromedp.KeyEvent("\x1b"))
	p.await(`!document.getElementById('detail').open`)
}

func TestWithoutTheFlagNothingIsRevoked(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := client(t, masters, "me")
	m := lock(t, c, "k")
	p := opens(t, masters)
	p.await(row("k"))
	p.run(chromedp.Click(chromedp.CSS("#rows button")))
	p.await(`document.getElementById('detail').open`)
	require.True(t, eval[bool](p, `document.getElementById('revocation').hidden`))
	require.Equal(t, 403, eval[int](p, `fetch('revoke', {method: 'POST', body: JSON.stringify({row: [...rows.keys()][0], reason: 'x'})}).then(r => r.status)`))
	require.NoError(t, m.Extend(t.Context()))
}

// A page of another origin can neither read, nor change, nor show this one in a frame.
func TestAnotherPageGetsNothing(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	lock(t, client(t, masters, "me"), "k")
	p := opens(t, masters, "--allow-revoke")
	p.await(row("k"))
	base, shown := p.base, eval[string](p, `JSON.stringify([...rows.values()].map(l => ({row: l.id, holders: l.holders.map(h => h.id), reason: 'x'}))[0])`)
	p.hosts = 3
	// The same browser, with the cookie, and a page of another port: the same site, and another origin.
	other := opens(t, masters)
	p.run(chromedp.Navigate(other.base + "/"))
	for _, script := range []string{
		`fetch('` + base + `/events', {credentials: 'include'}).then(r => 'read ' + r.status, e => 'refused')`,
		`fetch('` + base + `/revoke', {method: 'POST', credentials: 'include', mode: 'no-cors', body: '` + shown + `'}).then(r => r.type, e => 'refused')`,
	} {
		require.NotContains(t, eval[string](p, script), "read")
	}
	other.await(row("k") + `?.className === ''`)
	require.Equal(t, "me", eval[string](other, row("k")+`.cells[1].textContent`), "it is not revoked")
}

func TestLocksAreSortedByAClick(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := client(t, masters, "me")
	require.NoError(t, c.NewMutex("b", time.Minute, redlock.WithFence()).TryLock(t.Context()))
	for taken := time.Now(); time.Since(taken) < 2*time.Millisecond; { // a is younger
	}
	require.NoError(t, c.NewMutex("a", 2*time.Hour, redlock.WithFence()).TryLock(t.Context()))
	m := lock(t, c, "c")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go client(t, masters, "waiter").NewMutex("a", time.Hour).Lock(ctx)
	p := opens(t, masters)
	keys := `[...document.getElementById('rows').rows].map(tr => tr.cells[0].textContent).join('')`
	p.await(keys + ` === 'abc' && ` + row("a") + `.cells[6].textContent === '1'`)
	require.Regexp(t, `^\d+\.\ds$`, eval[string](p, row("b")+`.cells[5].textContent`))
	require.Empty(t, eval[string](p, row("c")+`.cells[5].textContent`), "nothing says how old it is")
	for _, click := range []struct{ column, direction, order string }{
		{"Age", "ascending", "bac"}, {"Age", "descending", "abc"}, {"Key", "ascending", "abc"}, {"Key", "descending", "cba"}, {"Waiting", "ascending", "abc"}, {"Waiting", "descending", "abc"},
		{"Time left", "ascending", "bca"}, {"Time left", "descending", "acb"},
	} {
		head := `[...document.querySelectorAll('#locks th')].find(th => th.textContent === '` + click.column + `')`
		eval[any](p, head+`.firstChild.click()`)
		p.await(keys + ` === '` + click.order + `'`)
		require.Equal(t, click.direction, eval[string](p, head+`.getAttribute('aria-sort')`))
		require.Equal(t, 1, eval[int](p, `document.querySelectorAll('[aria-sort]').length`))
	}

	// What the dialog has found is not what has happened.
	eval[any](p, row("b")+`.cells[0].firstChild.click()`)
	p.await(`/, taken at [-0-9]+ [:0-9]+ UTC, about$/.test(document.getElementById('detail-text').textContent)`)
	p.run(chromedp.KeyEvent("\x1b"))
	p.await(`!document.getElementById('detail').open`)
	eval[any](p, row("c")+`.cells[0].firstChild.click()`)
	first := `document.getElementById('changes').lastChild?.textContent`
	p.await(`/^looked at [:0-9]+ UTC: held by me$/.test(` + first + `)`)
	require.NoError(t, m.Unlock(t.Context()))
	p.await(`/^changed at [:0-9]+ UTC: free$/.test(document.getElementById('changes').firstChild.textContent)`)
	for i := range 3 {
		_, err := masters.Do(i, "RPUSH", "c", "x")
		require.NoError(t, err)
	}
	p.await(`document.getElementById('changes').firstChild.textContent.endsWith(': held by a key that is no lock (list)')`)
	for i := range 3 {
		_, err := masters.Do(i, "SET", "c", "left:me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "3600000")
		require.NoError(t, err)
	}
	p.await(`document.getElementById('changes').firstChild.textContent.endsWith(': left by me, and nobody runs it')`)
}

func TestTenThousandLocksDoNotFreezeThePage(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		_, err := masters.Do(i, "EVAL", `for i = 1, 10000 do redis.call('SET', string.format('lock:%05d', i), 'owner-' .. i % 7 .. '/abcdefghijklmnopqrstuvwxyz', 'PX', 3600000 + i) end`, "0")
		require.NoError(t, err)
	}
	p := opens(t, masters)
	p.await(`document.getElementById('locks-count').textContent === '10000'`)
	// A page that is not frozen draws: what takes longest between two frames, while the list is scrolled and filtered.
	longest := eval[float64](p, `(async () => {
		const scroll = document.getElementById('scroll'), filter = document.getElementById('filter');
		let longest = 0, last = performance.now();
		for (let i = 0; i < 60; i++) {
			if (i % 3 === 0) { filter.value = ['', '1', '99', 'owner-3'][i / 3 % 4]; filter.dispatchEvent(new Event('input')); }
			scroll.scrollTop = Math.random() * scroll.scrollHeight;
			await new Promise(requestAnimationFrame);
			const now = performance.now();
			longest = Math.max(longest, now - last);
			last = now;
		}
		filter.value = ''; filter.dispatchEvent(new Event('input'));
		return longest;
	})()`)
	t.Logf("the longest time between two frames was %.0f ms", longest)
	require.Less(t, eval[int](p, `document.querySelectorAll('tr').length`), 200, "rows that cannot be seen are not in the document")
	p.run(chromedp.Focus(chromedp.CSS("#rows button")), chromedp.KeyEvent(kb.End))
	p.await(row("lock:10000") + `?.cells[0].firstChild === document.activeElement`)

	lock(t, client(t, masters, "late"), "lock:99999")
	p.await(`document.getElementById('locks-count').textContent === '10001'`)
}

// It can be read on a phone: nothing but a table in its own frame is wider than the screen.
func TestAPhone(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	lock(t, client(t, masters, "me"), "lock:"+strings.Repeat("long", 40))
	p := opens(t, masters)
	p.run(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	p.await(`document.getElementById('rows').rows.length === 1`)
	require.False(t, eval[bool](p, `document.documentElement.scrollWidth > 360`))
}

// The README shows this picture. UPDATE=1 takes it anew.
func TestPicture(t *testing.T) {
	if os.Getenv("UPDATE") == "" {
		t.Skip("UPDATE is not set")
	}
	masters := redlocktest.Start(t, 5)
	for i, l := range []struct {
		owner, key string
		opts       []redlock.Option
	}{
		{"billing@web-1", "lock:invoices:2026-11", nil},
		{"reports@web-3", "lock:report", []redlock.Option{redlock.WithFence()}},
		{"search@worker-2", "lock:index", []redlock.Option{redlock.WithShared()}},
		{"search@worker-4", "lock:index", []redlock.Option{redlock.WithShared()}},
		{"train@gpu-1", "lock:gpu", []redlock.Option{redlock.WithPermits(4)}},
		{"train@gpu-2", "lock:gpu", []redlock.Option{redlock.WithPermits(4)}},
		{"scheduler@web-2", "lock:scheduler", []redlock.Option{redlock.WithFence()}},
		{"migrate@web-1", "lock:migration", nil},
	} {
		c := client(t, masters, l.owner)
		m := c.NewMutex(l.key, time.Duration(40+i*13)*time.Second, l.opts...)
		require.NoError(t, m.TryLock(t.Context()))
	}
	for _, owner := range []string{"reports@web-1", "reports@web-2"} {
		c := client(t, masters, owner)
		go c.NewMutex("lock:report", time.Minute).Lock(t.Context())
	}
	p := opens(t, masters)
	masters.Kill(3)
	p.run(chromedp.EmulateViewport(1100, 760))
	p.await(`document.getElementById('locks-count').textContent === '6' && document.getElementById('masters-count').textContent === '4 of 5 up, 3 needed'`)
	p.await(row("lock:report") + `?.cells[6].textContent === '2'`)
	p.await(`document.getElementById('clients').rows.length > 8`)
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("../../redlock/docs/ui.png", picture, 0o644))
}
