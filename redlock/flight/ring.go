package flight

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"runtime/debug"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
)

const (
	pageBytes = 64 << 10 // that we write
	maxBody   = 14 << 10 // once it has 12 KiB, texts are left out
	fullAt    = 12 << 10
)

// readClocks reads the time since boot, unless at says it, and the wall clock's since 1970. ring.mu is held.
type readClocks func(at time.Duration) (boot, wall time.Duration)

// systemClocks reads the wall clock once in wallPause. Both clocks are not free, and most rounds say when they ended.
func systemClocks(lie time.Duration) readClocks {
	var readAt, ahead time.Duration
	return func(at time.Duration) (boot, wall time.Duration) {
		if at == 0 {
			at = clock.Now()
		}
		if (at - readAt).Abs() > wallPause {
			readAt = clock.Now()
			ahead = time.Duration(time.Now().UnixNano()) - readAt + lie
		}
		return at, at + ahead
	}
}

// wallPause is how late a wall clock that was set is seen.
const wallPause = 10 * time.Millisecond

// A ring holds the last events. Whatever it is stopped in, a reader of its memory finds all events but the one that was
// being written.
type ring struct {
	clock  readClocks
	memory []byte
	file   *file // that the memory is of; nil without

	mu       sync.Mutex
	err      error // why nothing is recorded any more
	page     int   // that is being written
	pages    int   // number of them
	lapped   bool  // all of them are in use
	at       int   // in the page, where the next event goes
	first    uint64
	next     uint64 // number of the next event
	boot     time.Duration
	wall     time.Duration // ahead of boot
	body     []byte        // of the event that is being encoded
	bootNow  time.Duration
	wallNow  time.Duration
	seed     maphash.Seed
	texts    uint64 // in the page
	known    [256]knownText
	aboutSeq uint64
	faults   bool // what debug.SetPanicOnFault said before
}

// A knownText is one that is in the page.
type knownText struct {
	sum uint64
	n   uint64 // 0 if there is none
}

// init makes the memory an empty ring.
func (r *ring) init() {
	r.seed = maphash.MakeSeed()
	r.pages = (len(r.memory) - record.HeadBytes) / pageBytes
	r.body = make([]byte, record.Numbers, record.Numbers+maxBody+record.MaxText)
	r.file.wrote(0, len(appendHead(r.memory[:0], r.pages)))
	r.next = 1
	r.bootNow, r.wallNow = r.clock(0)
	r.wallNow -= r.bootNow
	r.page = -1
	r.turn()
}

func appendHead(dst []byte, pages int) []byte {
	dst = append(dst, record.Magic...)
	dst = binary.LittleEndian.AppendUint32(dst, record.Version)
	dst = binary.LittleEndian.AppendUint32(dst, pageBytes)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(pages))
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst, record.Castagnoli))
}

// pageAt returns a page's memory.
func (r *ring) pageAt(i int) []byte {
	from := record.HeadBytes + i*pageBytes
	return r.memory[from : from+pageBytes : from+pageBytes]
}

// turn begins the next page. mu is held.
func (r *ring) turn() {
	if r.page++; r.page == r.pages {
		r.page, r.lapped = 0, true
	}
	r.at, r.first, r.boot, r.wall = record.PageHead, r.next, r.bootNow, r.wallNow
	r.texts = 0
	clear(r.known[:])
	p := r.pageAt(r.page)
	clear(p[:record.PageHead+record.EventHead]) // it is empty, until it has a head again
	head := binary.LittleEndian.AppendUint64(p[:0], r.first)
	head = binary.LittleEndian.AppendUint64(head, uint64(r.boot))
	head = binary.LittleEndian.AppendUint64(head, uint64(r.boot+r.wall))
	binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, record.Castagnoli))
	r.file.wrote(record.HeadBytes+r.page*pageBytes, record.PageHead+record.EventHead)
}

// lock begins an event that was at that time since boot; 0 means now. It reports false if nothing is recorded any more.
func (r *ring) lock(at time.Duration) bool {
	r.mu.Lock()
	if r.err != nil {
		r.mu.Unlock()
		return false
	}
	if r.file != nil {
		r.faults = debug.SetPanicOnFault(true)
	}
	boot, wall := r.clock(at)
	r.bootNow, r.wallNow = boot, wall-boot
	return true
}

// begin begins the body of an event. mu is held.
func (r *ring) begin(kind record.Kind, client int, key string) {
	r.body = append(r.body[:record.Numbers], byte(kind))
	r.u(uint64(client), signed(r.bootNow-r.boot), signed(r.wallNow-r.wall))
	r.text(key)
}

// end puts the event into the page. If the page is full, it begins the next one and reports false: the texts of the
// event are to be encoded again. mu is held.
func (r *ring) end() bool {
	n := len(r.body) - record.Numbers
	if r.at+record.EventHead+n+2 > pageBytes {
		r.turn()
		return false
	}
	p := r.pageAt(r.page)[r.at:]
	p[record.EventHead+n], p[record.EventHead+n+1] = 0, 0 // it ends there, also if we end before the next one
	copy(p[record.EventHead:], r.body[record.Numbers:])
	binary.LittleEndian.PutUint32(p[2:], record.Sum(r.body, r.first, r.next))
	binary.LittleEndian.PutUint16(p, uint16(n))
	r.file.wrote(record.HeadBytes+r.page*pageBytes+r.at, record.EventHead+n+2)
	r.at += record.EventHead + n
	r.next++
	r.boot, r.wall = r.bootNow, r.wallNow
	return true
}

// u adds numbers. It is one loop that is not inlined: an event comes after system calls, so that what it costs is to
// bring its code into the processor's cache.
//
//go:noinline
func (r *ring) u(numbers ...uint64) {
	b := r.body
	for _, v := range numbers {
		for ; v >= 0x80; v >>= 7 {
			b = append(b, byte(v)|0x80)
		}
		b = append(b, byte(v))
	}
	r.body = b
}

func (r *ring) hash(h uint64) { r.body = binary.LittleEndian.AppendUint64(r.body, h) }

// signed is a number as a varint has it.
func signed[T ~int64](v T) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func duration(d time.Duration) uint64 { return uint64(max(d, 0)) }

// text adds a text, or the number of one that is in the page.
func (r *ring) text(s string) {
	if s == "" || len(r.body) > fullAt {
		r.u(0)
		return
	}
	if len(s) > record.MaxText {
		s = s[:record.MaxText]
	}
	h := maphash.String(r.seed, s)
	known := &r.known[h%uint64(len(r.known))]
	if known.n > 0 && known.sum == h {
		r.u(known.n + 1)
		return
	}
	r.texts++
	*known = knownText{h, r.texts}
	r.u(1, uint64(len(s)))
	r.body = append(r.body, s...)
}

// kinds are those of the events that record records.
var kinds = map[redlock.EventKind]record.Kind{
	redlock.EventRound: record.KindRound, behind.Wait: record.KindWait, behind.Wake: record.KindWake, redlock.EventWaited: record.KindWaited,
	behind.HandedOver: record.KindHandedOver, behind.LetGo: record.KindLetGo, redlock.EventLost: record.KindLost,
	behind.Dropped: record.KindDropped,
}

// record records an event of a client.
func (r *ring) record(client int, e *redlock.Event) {
	kind := kinds[e.Kind]
	if kind == 0 {
		return
	}
	more := behind.OfEvent(e)
	hash := more.TokenHash()
	outcome, detail := outcomeOf(e.Err)
	var few [8]string
	failures := few[:0]
	for i := range e.Votes {
		switch v := &e.Votes[i]; {
		case !hasFailed(v):
		case v.Err == nil:
			failures = append(failures, "")
		default:
			failures = append(failures, v.Err.Error())
		}
	}
	if !r.lock(more.Boot) {
		return
	}
	defer r.unlock()
	for done := false; !done; done = r.end() {
		r.begin(kind, client, e.Key)
		switch kind {
		case record.KindRound:
			r.round(e, more, outcome, detail, hash, failures)
		case record.KindWake:
			r.text(more.Why)
		case record.KindWaited:
			r.text(outcome)
			r.text(detail)
			r.u(duration(e.Took))
		case record.KindHandedOver:
			r.u(more.Fence, duration(more.Validity))
			r.hash(hash)
		case record.KindLetGo:
			r.flag(more.GivenBack)
			r.hash(hash)
		case record.KindLost:
			r.text(outcome)
			r.text(detail)
			r.hash(hash)
		case record.KindDropped:
			r.u(more.Dropped, duration(more.Boot-more.Started))
		}
	}
}

func (r *ring) flag(is bool) {
	b := byte(0)
	if is {
		b = 1
	}
	r.body = append(r.body, b)
}

// round adds what an event says of a round.
func (r *ring) round(e *redlock.Event, more *behind.Event, outcome, detail string, hash uint64, failures []string) {
	r.text(e.Op)
	r.text(outcome)
	r.text(detail)
	r.flag(more.Started > 0)
	r.u(duration(e.Took), duration(more.Validity), duration(more.Held), duration(more.TTL), uint64(more.Failures), uint64(more.Asked), uint64(more.Holders), more.Fence)
	r.hash(hash)
	r.u(uint64(len(more.Keys)))
	for _, key := range more.Keys {
		r.text(key)
	}
	r.u(uint64(len(e.Votes)))
	failed := 0
	for i := range e.Votes {
		v := &e.Votes[i]
		if !hasFailed(v) {
			r.body = append(r.body, byte(verdictOf(v)))
			r.u(duration(v.RTT))
			continue
		}
		r.body = append(r.body, byte(record.Failed))
		r.text(failures[failed])
		failed++
	}
}

func verdictOf(v *redlock.Vote) record.Verdict {
	switch v.Verdict {
	case "yes":
		return record.Yes
	case "no":
		return record.No
	}
	return record.Pending
}

// hasFailed reports whether a vote has a reason to be recorded. One that was withheld until the timeout has, too: its
// master may have answered.
func hasFailed(v *redlock.Vote) bool {
	return v.Verdict == "failed" || v.Verdict == "pending" && v.Err != nil
}

func (r *ring) master(kind record.Kind, client int, at time.Duration, addr, phase, why string, m *behind.Master) {
	if !r.lock(at) {
		return
	}
	defer r.unlock()
	for done := false; !done; done = r.end() {
		r.begin(kind, client, addr)
		r.text(phase)
		r.text(why)
		r.text(m.RunID)
		r.u(signed(m.Ahead), duration(m.Within), duration(m.Uptime), uint64(m.Place)+1)
	}
}

// outcomeOf returns the outcome, and for people what has gone wrong. That a lock is held is no news, unless the
// error says by whom. mu must not be held: the error may be of another's type, whose methods may wait for another event,
// or panic.
func outcomeOf(err error) (outcome, detail string) {
	outcome = redlock.Outcome(err)
	e, _ := err.(*redlock.RoundError)
	switch {
	case outcome == "ok", outcome == "cancelled", outcome == "held" && e == nil:
		return outcome, ""
	case outcome == "held":
		return outcome, e.HeldBy
	case outcome == "revoked" && e != nil && e.WhyRevoked != "":
		return outcome, e.WhyRevoked
	}
	return outcome, err.Error()
}

// unlock ends an event. If the memory is that of a file and could not be written, as the disk is full or somebody has
// cut the file, nothing is recorded any more: a record must never harm the program.
func (r *ring) unlock() {
	p := recover()
	if p != nil {
		if _, fault := p.(interface{ Addr() uintptr }); !fault || r.file == nil {
			r.release()
			panic(p)
		}
		r.err = fmt.Errorf("the file cannot be written any more: %v", p)
	}
	r.release()
}

func (r *ring) release() {
	if r.file != nil {
		debug.SetPanicOnFault(r.faults)
		if r.err == nil {
			r.err = r.file.err
		}
	}
	r.mu.Unlock()
}

// about writes who writes the record. mu must not be held.
func (r *ring) about(a *record.About) {
	text := a.Encode(record.AboutSize - 16)
	if !r.lock(0) {
		return
	}
	defer r.unlock()
	r.aboutSeq++
	at := record.AboutAt + int(r.aboutSeq%2)*record.AboutSize
	p := r.memory[at : at+record.AboutSize : at+record.AboutSize]
	head := binary.LittleEndian.AppendUint64(nil, r.aboutSeq)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(text)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Update(crc32.Checksum(head, record.Castagnoli), record.Castagnoli, text))
	copy(p[16:], text)
	copy(p, head)
	r.file.wrote(at, 16+len(text))
}

// access calls f with the memory. It returns why the memory cannot be used.
func (r *ring) access(f func(memory []byte)) (err error) {
	r.mu.Lock()
	if r.memory == nil {
		r.mu.Unlock()
		return fmt.Errorf("flight: %w", errClosed)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("flight: the file cannot be used: %v", p)
		}
		if r.file != nil {
			debug.SetPanicOnFault(r.faults)
		}
		r.mu.Unlock()
	}()
	if r.file != nil {
		r.faults = debug.SetPanicOnFault(true)
	}
	f(r.memory)
	return nil
}

// used returns the number of pages that have events.
func (r *ring) used() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lapped {
		return r.pages
	}
	return r.page + 1
}
