// Package conntest helps the tests of package conn and of what is built on it: with a byte stream
// as bad as its contract allows, with a listener for servers that a test plays itself, and with
// waits that end. It is for the tests of this module, and promises nothing.
package conntest

import (
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Faults says what goes wrong. Its Wrap method fits conn.Options.Wrap:
//
//	faults := &conntest.Faults{Most: 1, Idle: 0.3}
//	options := conn.Options{Wrap: faults.Wrap}
//
// One Faults may wrap any number of streams; each has its own counts. The zero value does no
// harm. Do not change the fields once Wrap was called.
type Faults struct {
	// Seed makes the random choices repeatable, as far as the order of the calls is.
	Seed uint64

	// Most is the greatest number of bytes that a read or a write moves. Zero: no limit.
	Most int

	// Idle is the probability, from 0 to below 1, that a read finds nothing although
	// something has arrived, and that a write finds no room.
	Idle float64

	// ResetRead and ResetWrite, if positive, are the numbers of the first byte that cannot
	// be read and of the first that cannot be written, counted from 1. At that byte the
	// stream breaks, in both directions and for good.
	ResetRead, ResetWrite int64

	streams atomic.Uint64
	resets  atomic.Int64
}

// Wrap puts the faults around a stream to any master.
func (f *Faults) Wrap(_ string, stream io.ReadWriter) io.ReadWriter {
	s := &faulty{faults: f, stream: stream}
	s.random = rand.New(rand.NewPCG(f.Seed, f.streams.Add(1)))
	return s
}

// Resets returns how many streams have broken so far.
func (f *Faults) Resets() int { return int(f.resets.Load()) }

type faulty struct {
	faults *Faults
	stream io.ReadWriter

	mu            sync.Mutex
	random        *rand.Rand
	read, written int64
	broken        bool
}

func (s *faulty) Read(p []byte) (int, error) {
	return s.move(p, s.stream.Read, &s.read, s.faults.ResetRead, "recvfrom")
}

func (s *faulty) Write(p []byte) (int, error) {
	return s.move(p, s.stream.Write, &s.written, s.faults.ResetWrite, "sendto")
}

func (s *faulty) move(p []byte, do func([]byte) (int, error), count *int64, reset int64, call string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reset > 0 && *count+1 >= reset && !s.broken {
		s.broken = true
		s.faults.resets.Add(1)
	}
	if s.broken {
		return 0, os.NewSyscallError(call, syscall.ECONNRESET)
	}
	if s.random.Float64() < s.faults.Idle {
		return 0, nil
	}
	if most := s.faults.Most; most > 0 {
		p = p[:min(len(p), most)]
	}
	if reset > 0 {
		p = p[:min(int64(len(p)), reset-1-*count)]
	}
	n, err := do(p)
	*count += int64(n)
	return n, err
}
