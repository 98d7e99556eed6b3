package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/resp"
)

// An answer is what one master says of a key.
type answer struct {
	Addr          string // the master's, never with a password
	Err           error  // why its answer is missing; nil if it is not
	census.Holder        // without a token if the key is free, or its readers or permits were asked for
	row           census.Row
	agreed        int // how many permits there are, as their users have agreed; 0 if nothing says so
}

// readers are those that hold the key.
func (a *answer) readers() []census.Holder {
	if a.row.Readers > 0 {
		return a.row.Holders
	}
	return nil
}

// holders asks every master who holds a key there, and writes nothing. Unlike
// [redlock.Client.Holders], it does not need a majority of the masters.
func (s *masterSet) holders(ctx context.Context, key string) []answer {
	key = s.key(key)
	return s.ask(ctx, func(p *probe, a *answer) (err error) {
		if a.row, err = p.row(ctx, census.Fence+census.Line+census.Readers, key, key); err != nil {
			return err
		}
		if n := len(a.row.Holders); n > 0 {
			a.Holder = a.row.Holders[n-1]
			if a.row.Readers > 0 { // the last is the one that ends last
				a.Holder = census.Holder{TTL: a.TTL}
			}
		}
		if mark, err := p.values(ctx, kind.MarkKey(key)); err == nil { // which the user may lack the right to
			a.noteAgreed(mark.Holders)
		}
		return nil
	})
}

// permits asks every master who holds each of the n permits of a key there, and writes nothing.
func (s *masterSet) permits(ctx context.Context, key string, n int) []answer {
	permits := kind.NewPermits(s.key(key), 0, n)
	return s.ask(ctx, func(p *probe, a *answer) error {
		row, err := p.values(ctx, append(permits.Names(), kind.MarkKey(s.key(key)))...)
		if err != nil {
			return err
		}
		if i := len(row.Holders) - 1; i >= 0 && row.Holders[i].Permit > n {
			a.noteAgreed(row.Holders[i:])
			row.Holders = row.Holders[:i]
		}
		line, _ := p.row(ctx, census.Line, kind.MarkKey(s.key(key)), permits.Prefix) // which the user may lack the right to
		row.Waiters = line.Waiters
		a.row = row
		return nil
	})
}

// row asks who holds a key. It is given the key whose queue is asked for.
func (p *probe) row(ctx context.Context, what, key, queue string) (row census.Row, err error) {
	command := []string{"EVAL", census.Rows.Text, "0", what, key, string(kind.AppendQueueKey(nil, queue))}
	replies, err := p.do(ctx, command)
	if err != nil {
		return row, err
	}
	if census.JudgeRows(replies[0]) == mux.VerdictYes {
		return census.ReadRows(replies[0])[0], nil
	}
	if conn.ErrorCode(replies[0]) == "NOPERM" { // the user may call no script
		row, err = p.values(ctx, key)
		if err != nil || len(row.Holders) == 0 {
			return row, err
		}
		if h := &row.Holders[0]; !h.MayBeReaders() {
			h.Permit = 0
			return row, nil
		}
	}
	refusal := &mux.ReplyError{Message: p.ErrorText(replies[0])}
	if lacks := rights.Explain(refusal.Message, resp.AppendCommand(nil, command...)); lacks != "" {
		return row, fmt.Errorf("%w: %s", refusal, lacks)
	}
	return row, refusal
}

func (a *answer) noteAgreed(marks []census.Holder) {
	for _, mark := range marks {
		a.agreed = mark.Permits()
	}
}

// values asks who holds each of some keys, of which each is a permit of the row. A user who may not call scripts is asked for
// more than is needed: what is too long is skipped.
func (p *probe) values(ctx context.Context, keys ...string) (row census.Row, err error) {
	replies, err := p.do(ctx, append([]string{"EVAL", census.Values.Text, "0"}, keys...))
	if err != nil {
		return row, err
	}
	if !replies[0].IsError() {
		return census.ReadPermits(replies[0]), nil
	}
	var commands [][]string
	for _, key := range keys {
		commands = append(commands, []string{"GET", key}, []string{"PTTL", key})
	}
	replies, err = p.do(ctx, commands...)
	for i := 0; i+1 < len(replies); i += 2 {
		h, there := census.ReadHolder(replies[i], replies[i+1])
		switch code := conn.ErrorCode(replies[i]); {
		case code == tooLongCode:
			h.Size = -1
		case replies[i].IsError() && code != "WRONGTYPE":
			return row, errors.New("GET: " + p.ErrorText(replies[i]))
		case replies[i+1].IsError():
			return row, errors.New("PTTL: " + p.ErrorText(replies[i+1]))
		}
		if conn.ErrorCode(replies[i]) == "WRONGTYPE" {
			types, err := p.do(ctx, []string{"TYPE", keys[i/2]})
			if err != nil {
				return row, err
			}
			h.Type = census.ReadType(types[0])
		}
		if h.Permit = 1 + i/2; there && !replies[i].IsNull() {
			row.Holders = append(row.Holders, h)
		}
	}
	return row, err
}

// ask has each master's answer made by a question, which is put to all of them at once.
func (s *masterSet) ask(ctx context.Context, question func(*probe, *answer) error) []answer {
	all := make([]answer, len(s.masters))
	for i, err := range s.askAll(ctx, func(i int, p *probe) error { return question(p, &all[i]) }) {
		if err != nil {
			all[i] = answer{Err: err}
		}
		all[i].Addr = conn.Redact(s.masters[i])
	}
	return all
}

// askAll puts a question to all masters at once, and returns how each has failed.
func (s *masterSet) askAll(ctx context.Context, question func(i int, p *probe) error) []error {
	errs := make([]error, len(s.masters))
	var asking sync.WaitGroup
	for i, master := range s.masters {
		asking.Go(func() {
			p, err := dialProbe(ctx, master, s.connect)
			if err == nil {
				err = question(i, p)
				p.close()
			}
			errs[i] = err
		})
	}
	asking.Wait()
	return errs
}
