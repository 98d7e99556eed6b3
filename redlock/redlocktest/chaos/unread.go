//go:build linux

package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// Each client logs into a pipe. While nobody reads that, its log blocks, as one does whose reader hangs, or a terminal at
// which somebody has pressed Ctrl-S. Nothing else may.
const blockLog fault = "log blocked"

// logFile is the file that a client inherits for it.
const logFile = resourceFile + 1

// An unread log is a client's, for that time.
type unread struct {
	client string
	span
}

// openLog makes the pipe. What is written to it is read while nobody has the lock.
func (p *process) openLog() (file *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	go func() {
		defer r.Close()
		for err := error(nil); err == nil; {
			p.awaitReader()
			_, err = io.CopyN(io.Discard, r, 1<<10)
		}
	}()
	return w, nil
}

// awaitReader returns when the log may be read.
func (p *process) awaitReader() {
	p.unread.Lock()
	defer p.unread.Unlock()
}

// blockLog leaves a client's log unread for so long.
func (n *nemesis) blockLog(ctx context.Context, p *process, long time.Duration) {
	p.unread.Lock()
	defer p.unread.Unlock()
	from := clock.Now()
	sleep(ctx, long)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unread = append(n.unread, unread{p.name, span{from, clock.Now()}})
}

// logger is the observer that writes the log.
func (c *client) logger() redlock.Observer {
	return redlock.SlogObserver(slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

// leastUnread is how many logs must have been blocked, so that something is wrong if no client did anything then.
const leastUnread = 3

// leastUnkept is how many kept locks must have been lost while logs were not read, so that something is wrong if none was
// kept for long.
const leastUnkept = 5

// checkLogs demands that clients go on while their log is not read, and that locks are kept.
func (c *checker) checkLogs() {
	type id struct {
		client string
		hold   int
	}
	holds := make(map[id]*claim)
	for _, h := range c.claims {
		holds[id{h.client, h.hold}] = h
	}
	for _, u := range c.Unread {
		i := slices.IndexFunc(c.Logs, func(l clientLog) bool { return l.Client == u.client })
		if i < 0 {
			continue
		}
		kept := make(map[*claim]bool)
		for _, r := range c.Logs[i].Records {
			h := holds[id{u.client, r.Hold}]
			if r.T > (u.From+u.To)/2 && r.T < u.To {
				c.During++
			}
			switch {
			case h == nil || r.T <= u.From || r.T >= u.To:
			case r.Op == opLook && r.T > max(h.From, u.From)+h.lock.TTL:
				kept[h] = true
			case r.Op == opLost && !strings.Contains(r.Outcome, "revoked") && !strings.Contains(r.Outcome, "second"):
				c.Unkept++
			}
		}
		c.Kept += len(kept)
	}
	if c.During == 0 && len(c.Unread) >= leastUnread {
		c.violation("no client did anything while its log was blocked, %d times", len(c.Unread))
	}
	if c.Kept == 0 && c.Unkept >= leastUnkept {
		c.violation("%d locks were lost while the log of their client was blocked, and none was kept", c.Unkept)
	}
}
