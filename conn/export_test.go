package conn

import (
	"context"
	"crypto/tls"
	"testing"
	"time"
)

// AskEvery makes FollowGroup ask the sentinels again every d, until the test ends. Every
// FollowGroup must have returned by then, and no other test may run one meanwhile.
func AskEvery(tb testing.TB, d time.Duration) {
	before := askEvery
	askEvery = d
	tb.Cleanup(func() { askEvery = before })
}

// AskSlotEvery makes FollowSlot ask each node again every d, as AskEvery does for FollowGroup.
func AskSlotEvery(tb testing.TB, d time.Duration) {
	before := askSlotEvery
	askSlotEvery = d
	tb.Cleanup(func() { askSlotEvery = before })
}

// Remembers reports whether there is a Secret of a text.
func Remembers(text string) bool {
	secrets.Lock()
	defer secrets.Unlock()
	_, ok := secrets.of[text]
	return ok
}

// AnswerTLS writes what TLS itself would.
func AnswerTLS(c *Conn, p []byte) { c.tls.wire.Write(p) }

// AnswerBytes is how many bytes an answer may have of each of so many nodes that are asked at a time.
func AnswerBytes(nodes int) int {
	s := newSurvey(Address{}, &Options{})
	for i := range nodes {
		s.running[string(rune(i))] = func() {}
	}
	return s.limits().Frame
}

// AskedTwice asks a node of a cluster on one connection, and once more when its view is too old. between comes before that. It
// returns the epoch that the node has said the second time, if it has the slot then.
func AskedTwice(ctx context.Context, a Address, opt Options, at string, between func()) (epoch string, has bool, err error) {
	s := newSurvey(a, &opt)
	s.credentials = func(context.Context) (Credentials, *tls.Config, error) { return Credentials{}, nil, nil }
	q := asker{dialing: dialing{addr: a, opt: &s.opt}}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := q.dial(ctx, at); err != nil {
		return "", false, err
	}
	defer q.close()
	v := nodeView{survey: s, asker: &q, at: at, timeout: time.Minute}
	if _, err := v.ask(ctx); err != nil {
		return "", false, err
	}
	v.viewed -= viewLasts
	between()
	got, err := v.ask(ctx)
	return got.epoch, got.state.has(), err
}
