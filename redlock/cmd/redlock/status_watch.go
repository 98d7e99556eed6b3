package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// A watchEvent is a line of status --watch.
type watchEvent struct {
	Time time.Time `json:"time"`
	keyJSON
	State state  `json:"state"`
	Owner string `json:"owner,omitempty"`
	Other string `json:"other,omitempty"` // what the key is, if it is no lock

	Lingers bool   `json:"lingers,omitempty"` // it is only left there (--min-hold), and nobody runs it
	Fence   uint64 `json:"fence,omitempty"`
	Error   string `json:"error,omitempty"`
}

func newWatchEvent(key string, l redlock.LockInfo, err error) watchEvent {
	s := watchEvent{Time: time.Now().UTC(), keyJSON: newKeyJSON(key), State: free, Fence: l.Fence}
	switch {
	case err != nil:
		s.State, s.Error = unknown, err.Error()
	case l.Held:
		h := &l.Holders[0]
		s.State, s.Owner, s.Other, s.Lingers = held, h.Owner, behind.OfHolder(h).Other, h.Left
	}
	return s
}

func (s watchEvent) String() string {
	text := fmt.Sprintf("%s  %s: %s", timeText(s.Time), s.Key, s.State)
	switch {
	case s.Error != "":
		return text + ", " + s.Error
	case s.State != held:
		return text
	case s.Lingers:
		text = fmt.Sprintf("%s  %s: left by %s, and nobody runs it", timeText(s.Time), s.Key, cmp.Or(s.Owner, nameless))
	default:
		text += " by " + cmp.Or(s.Owner, s.Other, nameless)
	}
	if s.Fence != 0 {
		text += fmt.Sprintf(", fence %d", s.Fence)
	}
	return text
}

// watchAll writes who holds the keys, now and after each change, until ctx ends or no more can be known.
func watchAll(ctx context.Context, set masterSet, keys []string, asJSON bool) error {
	client, err := set.openAnyway(ctx, "status")
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen, ended := make(chan watchEvent), make(chan error)
	for _, key := range keys {
		go func() {
			var last error
			for l, err := range client.Watch(ctx, key) {
				last = err
				select {
				case seen <- newWatchEvent(key, l, err):
				case <-ctx.Done():
				}
			}
			select {
			case ended <- last:
			case <-ctx.Done():
			}
		}()
	}
	out := newTerminal(os.Stdout)
	for {
		select {
		case s := <-seen:
			if asJSON {
				encodeJSON(out, s, "")
			} else {
				out.printf("%s\n", conn.Printable(s.String()))
			}
			if err := out.failure(); err != nil {
				return err
			}
		case err := <-ended:
			var round *redlock.RoundError
			if !errors.As(err, &round) { // of the key itself
				return usageError("", "%w", err)
			}
			return &failure{exitNoQuorum, err, doctorRemedy}
		case <-ctx.Done():
			return nil
		}
	}
}
