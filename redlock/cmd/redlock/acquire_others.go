package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
)

// others says what others hold, and who they are. It asks as status does, which needs no more than
// the permission to read the key.
func (r *acquirer) others(key string) (what, who string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if r.permits > 0 {
		return r.otherPermits(ctx, key)
	}
	set := r.inForce()
	s := set.lockStatus(ctx, key)
	for _, also := range r.also {
		if s.state == held {
			break
		}
		s = set.lockStatus(ctx, also)
	}
	if what = fmt.Sprintf("%q is held by another", s.key); s.state != held && len(r.also) > 0 {
		what = fmt.Sprintf("%q, or a key beside it, is held by another", key)
	}
	switch {
	case s.state == unknown:
		return what, "nobody knows by whom: " + s.tooFew()
	case s.byParent():
		return what, "by " + parentText
	case s.state == free:
		return what, "by nobody for long: others try to take it, or it was just released"
	case r.shared && s.sharing > 0:
		return what, fmt.Sprintf("by %s: a run without --shared waits for them, and goes first", s.holder())
	case s.leader.Left():
		return what, fmt.Sprintf("%s, and nobody runs it", leftUntil(s.leader))
	case s.left() < 0:
		return what, fmt.Sprintf("by %s, %s", s.holder(), leftText(s.left()))
	}
	return what, fmt.Sprintf("by %s, %s unless it is renewed", s.holder(), leftText(s.left()))
}

func (r *acquirer) otherPermits(ctx context.Context, key string) (what, who string) {
	set := r.inForce()
	a := set.permitStatus(ctx, key, r.permits)
	what = fmt.Sprintf("none of %s of %q is free", plural(r.permits, "permit"), key)
	switch a.state {
	case unknown:
		return what, "nobody knows who holds them: " + a.tooFew()
	case free:
		return what, "not for long: others try to take them, or one was just released"
	}
	return what, a.holder() + " unless it is renewed"
}

// warnOfParent says that we wait for a lock that is held by the redlock that runs us.
func (r *acquirer) warnOfParent(key string) {
	if os.Getenv(tokenVariable) == "" || r.permits > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	set := r.inForce()
	for _, key := range append([]string{key}, r.also...) {
		if s := set.lockStatus(ctx, key); s.byParent() && !(r.shared && s.sharing > 0) {
			complain(fmt.Sprintf("waiting: %q is held", key), "by "+parentText)
			r.monitor.explained()
		}
	}
}

const (
	tokenVariable = "REDLOCK_TOKEN"
	parentText    = "the redlock that runs us: it is not free before that command has ended"
)

// byParent reports whether the redlock that runs us holds the lock.
func (s *lockStatus) byParent() bool {
	token := redlock.NewSecret(os.Getenv(tokenVariable))
	if token.IsZero() || s.state != held {
		return false
	}
	return s.leader.Token == token ||
		slices.ContainsFunc(s.readers, func(r *census.Claim) bool { return r.Token == token && r.Held() })
}
