//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
)

// A record is one line of what a client has done. All times are clock.Now's.
type record struct {
	T       time.Duration `json:"t"`              // when it was over, for leave when it began
	Began   time.Duration `json:"from,omitempty"` // when the attempt to take a lock was made
	Op      op            `json:"op"`
	Lock    string        `json:"lock,omitempty"` // that was asked for
	Key     string        `json:"key,omitempty"`  // whose counter is written
	Hold    int           `json:"hold,omitempty"` // which of the client's holds, from 1
	Until   time.Duration `json:"until,omitempty"`
	Fence   uint64        `json:"fence,omitempty"` // of the lock that was taken; 0 if it has none
	Token   string        `json:"token,omitempty"` // likewise, as far as the client knows it
	Outcome string        `json:"out,omitempty"`
	Version int           `json:"v,omitempty"`      // of the counter, as it was read
	Valid   bool          `json:"valid,omitempty"`  // a look after the write found the lock valid
	Second  uint64        `json:"second,omitempty"` // the number of a second lock; 0 if there is none
	Raised  uint64        `json:"raised,omitempty"` // redlock.Stats.FenceRaised
}

type op string

const (
	// Attempts to take a lock. If the outcome is ok, a hold begins at T, valid
	// until Until.
	opTry  op = "try"
	opLock op = "lock"
	opDo   op = "do"

	opLook   op = "look"   // the lock is valid until Until
	opExtend op = "extend" // if the outcome is ok, the lock is valid until Until
	opAdopt  op = "adopt"  // likewise, of another Mutex that takes over what was left
	opLost   op = "lost"   // the context of KeepAlive has ended
	opLeave  op = "leave"  // the holder has stopped; Unlock is called after T
	opUnlock op = "unlock"
	opDone   op = "done" // Do has returned, after having called its function

	opLead  op = "lead"  // a term of office begins
	opClean op = "clean" // a leader has cleaned up after its campaign; whether the lock was kept meanwhile
	opLed   op = "led"   // Lead has returned

	opWrite op = "write" // the counter is about to be written
	opWrote op = "wrote"

	opRevoke op = "revoke" // of the lock that has the token; of all that hold it then, without one

	opSecond op = "second" // what has become of a second lock, and of a Mutex that has none

	opOpen  op = "open"
	opWhole op = "whole" // after the storm: whether all masters are there again
	opEnd   op = "end"   // the client has ended; whether nothing is left of it
)

// The outcomes. Those of the lock's operations are made by name.
const (
	ok = "ok"

	// Of a write.
	overtaken = "overtaken" // another has written since the counter was read
	refused   = "refused"   // by the resource, since it was late
	gaveUp    = "given up"  // the look before the write found the lock invalid

	notKept = "not kept" // of a leader's lock while it cleans up

	// What must not be.
	revived    = "valid again" // by an extend, after the validity had ended
	keptAlive  = "kept alive"  // the context of a KeepAlive goes on after Unlock
	outlived   = "outlived"    // ... after the end of the validity
	stillValid = "still valid" // after Unlock, or after the second lock was lost
	lossUntold = "loss untold" // by Do, to whose function it was told
	fenceFell  = "lower fence" // of a lock that was handed over
)

// names are in the order in which an outcome is put together.
var names = []struct {
	err  error
	name string
}{
	{redlock.ErrLost, "lost"},
	{redlock.ErrRevoked, "revoked"},
	{redlock.ErrHeld, "held"},
	{redlock.ErrNoQuorum, "no quorum"},
	{redlock.ErrExpired, "expired"},
	{redlock.ErrNotHeld, "not held"},
	{redlock.ErrClosed, "closed"},
	{redlock.ErrSecond, "second"},
	{context.Canceled, "cancelled"},
	{context.DeadlineExceeded, "deadline"},
}

// name returns the names of an operation's error: "held", "no quorum+deadline".
// It is in quotes if it has no name, and if it blames a context that has not
// ended.
func name(ctx context.Context, err error) string {
	if err == nil {
		return ok
	}
	var all []string
	for _, n := range names {
		if errors.Is(err, n.err) {
			all = append(all, n.name)
		}
	}
	blamed := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if len(all) == 0 || blamed && ctx.Err() == nil {
		return fmt.Sprintf("%q", err)
	}
	return strings.Join(all, "+")
}

// A journal is a file of records. Each is written by one system call to the
// file's end, by any number of goroutines, so that a client may be killed at any
// time.
type journal struct{ file *os.File }

func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &journal{file}, err
}

// add panics if it fails: what is not written down must not go on.
func (j *journal) add(r record) {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// readJournal returns the whole records of a file, which may still be written
// to. A last line without an end is left out.
func readJournal(path string) ([]record, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var records []record
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return records, nil
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: record %d: %w", path, len(records)+1, err)
		}
		records = append(records, r)
		text = rest
	}
}
