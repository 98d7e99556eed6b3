package mux

import "math/bits"

// A Set is a set of masters. Master i of [Config.Masters] is bit i. The zero value is the
// empty set.
type Set uint64

// Has reports whether master i is in the set.
func (s Set) Has(i int) bool { return s&(1<<i) != 0 }

// Len returns the number of masters in the set.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// With returns the set with master i.
func (s Set) With(i int) Set { return s | 1<<i }

// Without returns the set without master i.
func (s Set) Without(i int) Set { return s &^ (1 << i) }
