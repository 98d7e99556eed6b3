package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// leadTTL is the TTL of a leader's lock, and of its lease in etcd, whose least is two seconds.
const leadTTL = 3 * time.Second

const candidates = 3 // processes that want to lead

func leads(end func(r *slice) error, least time.Duration) func(k *Case) {
	return func(k *Case) {
		k.drive, k.waits, k.group, k.table, k.TTL, k.least, k.rounds = end, true, groupLead, Result.writeTimes, leadTTL, least, 1
	}
}

// An electorate is the processes that want to lead.
type electorate struct {
	task candidateTask
	all  []*child
	said chan saying
}

// A saying is what a candidate has said, and when that was so.
type saying struct {
	who  *child
	word string
	at   time.Duration
	err  error
}

func (e *electorate) join() error {
	c, err := startChild("candidate", e.task)
	if err != nil {
		return err
	}
	e.all = append(e.all, c)
	go func() {
		for {
			line, err := c.hear()
			if err != nil {
				return // it has ended
			}
			word, at, _ := strings.Cut(line, " ")
			ns, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				err = errors.New(line)
			}
			e.said <- saying{c, word, time.Duration(ns), err}
		}
	}()
	return nil
}

// hear waits until a candidate says the word.
func (e *electorate) hear(word string) (saying, error) {
	for {
		select {
		case s := <-e.said:
			if s.err != nil || s.word == word {
				return s, s.err
			}
		case <-time.After(slack + leadTTL):
			return saying{}, fmt.Errorf("nobody says %q", word)
		}
	}
}

// leaderKilled measures for how long nobody leads after the leader's process was killed.
func leaderKilled(r *slice) error {
	return lead(r, true, func(e *electorate, leader *child) (since time.Duration, err error) {
		since = clock.Now()
		if err := leader.cmd.Process.Kill(); err != nil {
			return 0, err
		}
		return since, nil
	})
}

// leaderResigns measures it after the leader has stepped down.
func leaderResigns(r *slice) error {
	return lead(r, false, func(e *electorate, leader *child) (since time.Duration, err error) {
		if err := leader.tell("resign"); err != nil {
			return 0, err
		}
		s, err := e.hear("resigned")
		return s.at, err
	})
}

// lead measures how long it takes until another leads, once a leader has come to its end.
func lead(r *slice, killed bool, end func(e *electorate, leader *child) (since time.Duration, err error)) error {
	e := &electorate{said: make(chan saying, 100)}
	e.task = candidateTask{heirTask: heirTask{r.contestant.Name, r.fleet.endpoints}}
	if l, ok := r.locker.(*etcdLocker); ok {
		e.task.Etcd = l.endpoints
	}
	defer func() {
		for _, c := range e.all {
			c.Close()
		}
	}()
	for range candidates {
		if err := e.join(); err != nil {
			return err
		}
	}
	leader, err := e.hear("leads")
	if err != nil {
		r.sample.Fail(err)
		return nil
	}
	began := time.Now()
	defer func() { r.sample.Wall = time.Since(began) }()
	for time.Since(began) < r.length {
		// So long that all the others wait, and at no certain time between two renewals.
		time.Sleep(leadTTL/3 + rand.N(leadTTL/3))
		since, err := end(e, leader.who)
		if err != nil {
			return err
		}
		next, err := e.hear("leads")
		switch took := next.at - since; {
		case err != nil:
			r.sample.Fail(err)
			return nil
		case took < 0:
			r.sample.Fail(fmt.Errorf("another leads %v before", -took))
		default:
			r.sample.Record(took)
		}
		if killed {
			leader.who.Close()
			e.all = slices.DeleteFunc(e.all, func(c *child) bool { return c == leader.who })
			if err := e.join(); err != nil {
				return err
			}
		}
		leader = next
	}
	return nil
}

type candidateTask struct {
	heirTask
	Etcd []string // endpoints, if the candidate is one of etcd's election
}

// serveCandidate campaigns, leads until it is told to resign, and campaigns again.
func serveCandidate(in *bufio.Reader, out io.Writer) error {
	var task candidateTask
	if err := readTask(in, &task); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resign := make(chan struct{})
	go func() {
		defer cancel()
		for {
			if _, err := hear(in); err != nil {
				return
			}
			resign <- struct{}{}
		}
	}()
	say := func(word string) { fmt.Fprintln(out, word, int64(clock.Now())) }
	term := func(ctx context.Context) error {
		say("leads")
		select {
		case <-resign:
			say("resigned")
		case <-ctx.Done():
		}
		return nil
	}
	campaign := leadRedburst
	if task.Etcd != nil {
		campaign = leadEtcd
	}
	err := campaign(ctx, task, term)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func leadRedburst(ctx context.Context, task candidateTask, term func(context.Context) error) error {
	urls := (&Fleet{N: len(task.Endpoints), endpoints: task.Endpoints}).URLs()
	client, err := redlock.Open(ctx, redlock.Config{Masters: urls})
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Lead(ctx, "bench:leader", leadTTL, term)
}

func leadEtcd(ctx context.Context, task candidateTask, term func(context.Context) error) error {
	client, err := dialEtcd(task.Etcd)
	if err != nil {
		return err
	}
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(leadTTL/time.Second)))
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, "/bench/leader")
	for {
		if err := election.Campaign(ctx, fmt.Sprint(os.Getpid())); err != nil {
			return err
		}
		if err := term(ctx); err != nil {
			return err
		}
		if err := election.Resign(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
}
