//go:build linux

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
)

// A kind says who excludes whom. A writer has each of its keys alone. Readers have theirs together,
// and no writer has it meanwhile. Permits have a key of their own, with so many at a time.
type kind string

const (
	plain   kind = "plain"   // a writer
	several kind = "several" // a writer that has several keys, all or none
	foreign kind = "foreign" // a writer of another library
	shared  kind = "shared"  // a reader
	permits kind = "permits"
)

// label is what locks of this kind are counted under.
func (k kind) label(fenced bool) string {
	if fenced {
		return string(k) + " fenced"
	}
	return string(k)
}

// A lockable is a lock that the clients fight for. All who take it give it the same TTL.
type lockable struct {
	Kind    kind
	Keys    []string // more than one only of the kind several
	TTL     time.Duration
	Permits int           // how many can hold it, of the kind permits
	MinHold time.Duration // for so long nobody else can have it, from when it was taken
	Second  bool          // there is a second lock behind it (second.go); all who take the key take that, too

	// What its holders do, mostly. They leave it to its TTL, so that somebody has it at any moment while the
	// masters are struck. Or they extend it again and again, sometimes too late. Or they hand it over.
	Left, Extended, HandedOver bool

	Passed bool // so many want it that it goes from one worker of a client to the next; nobody asks for its token

	Led  bool // those who want it campaign for it (leader.go)
	Side side // the clients that want it
}

// A side is all clients, or a half of them.
type side int

const (
	everybody side = iota
	even           // the clients in the even places
	odd
)

func sideOf(place int) side { return even + side(place%2) }

// String is its name in the records. That of a plain lock is its key. Readers of one key may have
// different TTLs, and have the key at the same time.
func (l lockable) String() string {
	keys := strings.Join(l.Keys, "+")
	switch l.Kind {
	case plain, several:
		return keys
	case shared:
		return fmt.Sprintf("shared %s %v", keys, l.TTL)
	case permits:
		return fmt.Sprintf("permits %s of %d", keys, l.Permits)
	}
	return string(l.Kind) + " " + keys
}

// isWriter says whether a holder excludes all others, and so may write what the key protects.
func (l lockable) isWriter() bool { return l.Kind != shared && l.Kind != permits }

// mayFence says whether it goes with a fence.
func (l lockable) mayFence() bool {
	return (l.Kind == plain || l.Kind == several) && !l.Second && !l.Passed
}

// options returns what makes a Mutex on the first key this lock.
func (l lockable) options(fenced bool) []redlock.Option {
	var all []redlock.Option
	switch l.Kind {
	case several:
		all = append(all, redlock.WithKeys(l.Keys[1:]...))
	case shared:
		all = append(all, redlock.WithShared())
	case permits:
		all = append(all, redlock.WithPermits(l.Permits))
	}
	if fenced {
		all = append(all, redlock.WithFence())
	}
	if l.MinHold > 0 {
		all = append(all, redlock.WithMinHold(l.MinHold))
	}
	return all
}

// on returns the names that its keys have on the masters.
func (l lockable) on(prefix string) (all []string) {
	if l.Kind != permits {
		for _, key := range l.Keys {
			all = append(all, prefix+key)
		}
		return all
	}
	tag := "{" + l.Keys[0]
	if prefix != "" {
		tag = prefix + l.Keys[0] // the tag is the prefix's
	}
	for i := range l.Permits {
		all = append(all, fmt.Sprintf("%s}:permit:%d/%d", tag, i+1, l.Permits))
	}
	return all
}

// keysOf returns the keys of all these locks, each once.
func keysOf(all []lockable) []string {
	var keys []string
	for _, l := range all {
		keys = append(keys, l.Keys...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// unguarded returns the locks that are safe without a Config.RestartGuard: a master that may have forgotten locks has no
// vote for the TTL that is asked for, so all who take a key ask for the same. The fences need more.
func unguarded(all []lockable) []lockable {
	return slices.DeleteFunc(slices.Clone(all), func(l lockable) bool {
		return l.Led || l.Kind == foreign || slices.ContainsFunc(all, func(other lockable) bool {
			return other.life() != l.TTL && slices.ContainsFunc(other.Keys, func(key string) bool { return slices.Contains(l.Keys, key) })
		})
	})
}

// life is how long its keys are on the masters, at most, from when they are set. For the least hold, what
// is allowed for clocks is added.
func (l lockable) life() time.Duration {
	if l.MinHold == 0 {
		return l.TTL
	}
	return max(l.TTL, l.MinHold+l.MinHold/100+2*time.Millisecond)
}

// longestOf returns the longest life.
func longestOf(all []lockable) time.Duration {
	return slices.MaxFunc(all, func(a, b lockable) int { return cmp.Compare(a.life(), b.life()) }).life()
}
