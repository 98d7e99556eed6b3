// Package record reads the records that package flight writes, in the format that both share. This is version 1. All
// fixed numbers are little-endian. CRC is CRC-32C. A reader refuses a version that it does not know.
//
//	at      bytes  what
//	0       8      "redlock\xf1"
//	8       4      the version: 1
//	12      4      P, the bytes of a page: 4,096 to 1,048,576
//	16      4      N, the number of pages: P * N is 256 MiB at most
//	20      4      CRC of the first 20 bytes
//	64      32,736 who wrote it, first copy
//	32,800  32,736 who wrote it, second copy
//	65,536  P * N  pages
//
// A copy of who wrote it is a number that grows with each write (8 bytes), the length of the text (4), CRC of these 12
// bytes and the text (4), and the text: an About as JSON. The copy that is whole and has the greater number is
// right.
//
// A page begins with the number of its first event, from 1 on (8 bytes; 0 means that it is not used), the time since boot and
// that of the wall clock since 1970 from which the times of its first event count (8 and 8, in nanoseconds), CRC of these 24
// bytes (4), and 4 bytes that are 0. Events follow, one after the other, without gaps in their numbers. An event is the length of its
// body (2 bytes; 0 ends the page), CRC of the number of the page's first event (8 bytes), the event's own number (8 bytes) and the
// body (4), and the body. A page whose next event is not whole ends there: it was being written when the process was killed, or
// it is a former page's.
//
// A body is written in varints as those of encoding/binary. u is an unsigned one, s a signed one (zigzag). A text is
// u: 0 for the empty text; 1, followed by the length (u) and the bytes, for one that is new in this page; n+1 for the
// nth one of this page that was new. Texts have 1,024 bytes at most. Durations are in nanoseconds.
//
//	kind        one byte: see Kind
//	client      u: the place in About.Clients
//	boot        s: time since boot, less that of the event before
//	wall        s: by how much the wall clock has moved against the one since boot since the event before
//	key         text: the lock's; of a master's event, its address
//
//	round       op (text), outcome (text, as redlock.Outcome has it), detail (text), whether masters were asked (one byte),
//	            took (u; the event is at its end), validity (u), held (u), ttl (u), failures (u), asked (u), holders (u), fence (u), hash of the token
//	            (8 bytes), number of keys (u) and each (text), number of votes (u), and each: verdict (one byte), and RTT (u), or if
//	            it has failed, why (text)
//	wait        nothing
//	wake        why (text)
//	waited      outcome (text), detail (text), for how long (u)
//	handed over fence (u), validity (u), hash of the token (8 bytes)
//	let go      whether it was given back by the client itself (one byte), hash of the token (8 bytes)
//	lost        outcome (text), detail (text), hash of the token (8 bytes; older records do not have it)
//	left out    how many events of this client are missing (u), and how long before this the first of them happened (u)
//	master,     phase (text), error (text), run id (text), by how much its clock is ahead (s), and how much more at
//	asked       the most (u), its uptime (u), its place in Client.Masters plus 1 (u; older records do not have it)
//
// What follows these in a body is of a later version that a reader may ignore.
package record

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"time"
)

// The format.
const (
	Magic     = "redlock\xf1"
	Version   = 1
	HeadBytes = 64 << 10 // before the first page
	AboutAt   = 64
	AboutSize = (HeadBytes - AboutAt) / 2
	PageHead  = 32
	EventHead = 6
	MaxRing   = 256 << 20
	MaxText   = 1 << 10
	Numbers   = 16 // bytes in front of a body: what its checksum covers, too

	minPage, maxPage = 4 << 10, 1 << 20
)

// Castagnoli is the table of CRC-32C.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Sum is the checksum of an event, whose body has room for the numbers in front of it.
func Sum(body []byte, first, number uint64) uint32 {
	binary.LittleEndian.PutUint64(body, first)
	binary.LittleEndian.PutUint64(body[8:], number)
	return crc32.Checksum(body, Castagnoli)
}

// About says who has written a record.
type About struct {
	Host    string
	PID     int
	Boot    string // says which boot of the host the times since boot are of; empty if it is unknown
	Program string
	Version string // of this module
	System  string // such as linux/amd64

	Began     time.Time     // by the wall clock
	BeganBoot time.Duration // likewise, since boot
	Ended     *time.Time    // when the Recorder was closed; nil if it was not: the process goes on, or has died

	Clients []Client
	LeftOut int // clients that there was no room for
}

// Encode returns the JSON, in so many bytes. What does not fit is left out, and that is said.
func (a *About) Encode(most int) []byte {
	short := *a
	short.Host, short.Program = cut(a.Host), cut(a.Program)
	for {
		text, err := json.Marshal(short)
		if err != nil {
			panic(err) // it has nothing that cannot be encoded
		}
		if len(text) <= most {
			return text
		}
		n := len(short.Clients) * most / len(text)
		short.Clients, short.LeftOut = short.Clients[:n], len(a.Clients)-n
	}
}

// cut returns the beginning of a text, as much of it as an event has.
func cut(text string) string { return text[:min(len(text), MaxText)] }

// A Client is one whose events are in a record.
type Client struct {
	Name    string   // Config.ClientName
	Owner   string   // Config.Owner
	Prefix  string   // Config.Prefix
	List    string   // the number of masters, and a hash of their addresses: it differs if the lists do
	Masters []string // their addresses, without passwords
}

// A Kind says what an event is.
type Kind byte

// The Kinds. A later version may have others.
const (
	KindRound      Kind = 1  // a round: see redlock.EventRound
	KindWait       Kind = 2  // a Lock has begun to wait
	KindWake       Kind = 3  // ... tries again
	KindWaited     Kind = 4  // ... and has returned
	KindHandedOver Kind = 5  // a lock was handed over within the client
	KindLost       Kind = 6  // the context of a KeepAlive has ended, as the lock was lost
	KindMaster     Kind = 7  // the phase of a master has changed
	KindAsked      Kind = 8  // a master was asked who it is, as a lock was lost
	KindLetGo      Kind = 9  // a holder lets go of its lock
	KindDropped    Kind = 10 // events of this client are missing here: the Recorder was too slow, as its disk was
)

// An Event is one of a record. Which fields are set depends on the Kind; what they mean, package redlock says.
type Event struct {
	Number uint64        // from 1 on
	Kind   Kind          // what it is
	Client int           // the place in About.Clients
	Boot   time.Duration // since boot
	Wall   time.Time     // by the wall clock, in UTC
	Key    string        // of the lock, at most 1,024 bytes of it; of KindMaster and KindAsked, the master's address

	// Of KindRound, and some of these of others: how it ended (redlock.Outcome), and for people, why: who holds the
	// lock, or the error.
	Outcome string
	Detail  string

	Op       string
	Began    time.Duration // since boot; 0 if no master was asked. Of KindDropped, when the first of the missing ones happened
	Took     time.Duration
	Validity time.Duration // also of KindHandedOver
	TTL      time.Duration
	Asked    int
	Holders  int    // how many can hold the lock at once: 0 for readers
	Fence    uint64 // also of KindHandedOver
	Token    uint64 // a hash; also of KindHandedOver, KindLetGo and KindLost, of which it is 0 if that is not known
	Keys     []string
	Votes    []Vote

	Waited time.Duration // of KindWaited

	GivenBack bool // of KindLetGo

	Dropped uint64 // of KindDropped: how many are missing

	Phase  string // of KindMaster
	Err    string // of KindMaster and KindAsked
	RunID  string // likewise, and what follows
	Ahead  time.Duration
	Within time.Duration
	Uptime time.Duration
	Place  int // of the master in Client.Masters, whose address may be another by then; -1 if the record does not say
}

// A Vote is a redlock.Vote. Its master is the one in the same place of Client.Masters, until an event of a master shows that place
// with another address.
type Vote struct {
	Verdict Verdict
	RTT     time.Duration
	Err     string
}

// The operations of rounds.
const (
	OpLock    = "lock"
	OpExtend  = "extend"
	OpUnlock  = "unlock"
	OpRenew   = "renew"
	OpRecheck = "recheck"
	OpRevoke  = "revoke"
)

// A Verdict is that of a redlock.Vote, in one byte.
type Verdict byte

const (
	Pending Verdict = iota
	Yes
	No
	Failed
)

// A Record is what was read.
type Record struct {
	About About
	// Torn says that a page ends with an event that is not whole. The process was killed as it wrote that, or the file was read
	// meanwhile, or was damaged.
	Torn int
	// BadPages is how many pages cannot be read.
	BadPages int

	pages []page
}

// A page is one that has a head. Its events are only decoded when they are asked for.
type page struct {
	first uint64
	next  uint64 // the number after its last event
	boot  time.Duration
	wall  time.Duration
	body  []byte // its events, as far as they are whole
}

// ErrNoRecord is an error of Read.
var ErrNoRecord = errors.New("this is no flight record that this program can read")

// Read reads a record. It may come from anybody: Read uses little more memory than the bytes that r has, and never more
// than 300 MiB. Events uses that of one Event, but who keeps them all can need 40 times as much as the record: see
// Record.Trim. An error wraps ErrNoRecord, or is r's. A record that was cut short or damaged is read as far as
// it is whole.
func Read(r io.Reader) (*Record, error) {
	head := make([]byte, HeadBytes)
	if n, err := io.ReadFull(r, head); err != nil {
		if n < len(Magic) || string(head[:len(Magic)]) != Magic {
			err = ErrNoRecord
		}
		return nil, fmt.Errorf("read: %w", plain(err))
	}
	switch {
	case string(head[:len(Magic)]) != Magic:
		return nil, ErrNoRecord
	case binary.LittleEndian.Uint32(head[8:]) != Version:
		return nil, fmt.Errorf("%w: it is of version %d", ErrNoRecord, binary.LittleEndian.Uint32(head[8:]))
	case binary.LittleEndian.Uint32(head[20:]) != crc32.Checksum(head[:20], Castagnoli):
		return nil, fmt.Errorf("%w: its head is damaged", ErrNoRecord)
	}
	size, n := int64(binary.LittleEndian.Uint32(head[12:])), int64(binary.LittleEndian.Uint32(head[16:]))
	if size < minPage || size > maxPage || n*size > MaxRing {
		return nil, fmt.Errorf("%w: %d pages of %d bytes", ErrNoRecord, n, size)
	}
	out := new(Record)
	out.readAbout(head)
	for range n {
		p := make([]byte, size)
		got, err := io.ReadFull(r, p)
		out.add(p[:got])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break // it was cut short
		}
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
	}
	slices.SortStableFunc(out.pages, func(a, b page) int { return cmp.Compare(a.first, b.first) })
	return out, nil
}

// plain is ErrNoRecord for a file that ends too early.
func plain(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it is too short", ErrNoRecord)
	}
	return err
}

func (r *Record) readAbout(head []byte) {
	latest := uint64(0)
	for at := AboutAt; at+AboutSize <= HeadBytes; at += AboutSize {
		p := head[at : at+AboutSize]
		seq, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:])
		if n > AboutSize-16 || seq <= latest {
			continue
		}
		text := p[16 : 16+n]
		if binary.LittleEndian.Uint32(p[12:]) != crc32.Update(crc32.Checksum(p[:12], Castagnoli), Castagnoli, text) {
			continue
		}
		var about About
		if json.Unmarshal(text, &about) == nil {
			r.About, latest = about, seq
		}
	}
}

// add takes a page, as far as its events are whole.
func (r *Record) add(p []byte) {
	if len(p) < PageHead {
		return
	}
	first := binary.LittleEndian.Uint64(p)
	if first == 0 {
		return
	}
	if binary.LittleEndian.Uint32(p[24:]) != crc32.Checksum(p[:24], Castagnoli) {
		r.BadPages++
		return
	}
	out := page{first: first, next: first, boot: time.Duration(binary.LittleEndian.Uint64(p[8:])), wall: time.Duration(binary.LittleEndian.Uint64(p[16:]))}
	at := PageHead
	var body []byte
	for at+2 <= len(p) {
		n := int(binary.LittleEndian.Uint16(p[at:]))
		if n == 0 {
			break
		}
		whole := at+EventHead+n <= len(p)
		if whole {
			body = append(append(body[:0], make([]byte, Numbers)...), p[at+EventHead:at+EventHead+n]...)
			whole = binary.LittleEndian.Uint32(p[at+2:]) == Sum(body, first, out.next)
		}
		if !whole {
			r.Torn++
			break
		}
		at += EventHead + n
		out.next++
	}
	if out.next > first {
		out.body = p[PageHead:at:at]
		r.pages = append(r.pages, out)
	}
}

// Overwritten returns how many events came before the first that the record still has.
func (r *Record) Overwritten() uint64 {
	if len(r.pages) == 0 {
		return 0
	}
	return r.pages[0].first - 1
}

// Trim forgets the first events, so that no more than so many are left, or those of one page. Overwritten counts them.
func (r *Record) Trim(events int) {
	n := uint64(0)
	for i := len(r.pages) - 1; i >= 0; i-- {
		n += r.pages[i].next - r.pages[i].first
		if n > uint64(max(events, 0)) && i < len(r.pages)-1 {
			r.pages = slices.Clone(r.pages[i+1:]) // so that the memory of the others is free
			return
		}
	}
}

// Missing returns how many events between the first and the last are not in the record: they were overwritten while it was
// read, or are damaged.
func (r *Record) Missing() (n uint64) {
	for i := 1; i < len(r.pages); i++ {
		if before := r.pages[i-1].next; r.pages[i].first > before {
			n += r.pages[i].first - before
		}
	}
	return n
}

// Events returns the events in their order. The events of a page that cannot be decoded are left out. An Event that was
// yielded is the caller's.
func (r *Record) Events() iter.Seq[*Event] {
	return func(yield func(*Event) bool) {
		next := uint64(0)
		for _, p := range r.pages {
			if p.first < next {
				continue // two pages with the same events: somebody has made that up
			}
			next = p.next
			d := decoder{boot: p.boot, wall: p.wall - p.boot}
			body := p.body
			for number := p.first; number < p.next; number++ {
				n := int(binary.LittleEndian.Uint16(body))
				e, ok := d.event(body[EventHead : EventHead+n])
				body = body[EventHead+n:]
				if !ok {
					break
				}
				e.Number = number
				if !yield(e) {
					return
				}
			}
		}
	}
}

// A decoder decodes the events of a page, one after the other.
type decoder struct {
	boot  time.Duration
	wall  time.Duration // ahead of boot
	texts []string

	body []byte
	bad  bool
}

// The most that one event can have. No client has more.
const (
	maxKeys  = 64
	maxVotes = 64
)

func (d *decoder) event(body []byte) (*Event, bool) {
	d.body = body
	e := new(Event)
	e.Kind = Kind(d.byte())
	e.Client = d.int()
	d.boot += time.Duration(d.s())
	d.wall += time.Duration(d.s())
	e.Boot, e.Wall = d.boot, time.Unix(0, int64(d.boot+d.wall)).UTC()
	e.Key = d.text()
	switch e.Kind {
	case KindRound:
		e.Op = d.text()
		e.Outcome, e.Detail = d.text(), d.text()
		asked := d.byte() > 0
		e.Took = d.d()
		if asked {
			e.Began = d.boot - e.Took
		}
		e.Validity = d.d()
		d.u() // for how long it was held
		e.TTL = d.d()
		d.u() // how many failures were told before
		e.Asked, e.Holders = d.int(), d.int()
		e.Fence, e.Token = d.u(), d.hash()
		if n := d.count(maxKeys); n > 0 {
			e.Keys = make([]string, 0, n)
			for range n {
				e.Keys = append(e.Keys, d.text())
			}
		}
		n := d.count(maxVotes)
		if n > 0 {
			e.Votes = make([]Vote, 0, n)
		}
		for range n {
			v := Vote{Verdict: Verdict(d.byte())}
			if v.Verdict == Failed {
				v.Err = d.text()
			} else {
				v.RTT = d.d()
			}
			e.Votes = append(e.Votes, v)
		}
	case KindWait:
	case KindWake:
		d.text() // why
	case KindWaited:
		e.Outcome, e.Detail, e.Waited = d.text(), d.text(), d.d()
	case KindHandedOver:
		e.Fence, e.Validity, e.Token = d.u(), d.d(), d.hash()
	case KindLetGo:
		e.GivenBack, e.Token = d.byte() > 0, d.hash()
	case KindLost:
		e.Outcome, e.Detail = d.text(), d.text()
		if len(d.body) > 0 {
			e.Token = d.hash()
		}
	case KindDropped:
		e.Dropped, e.Began = d.u(), d.boot-d.d()
	case KindMaster, KindAsked:
		e.Phase, e.Err, e.RunID = d.text(), d.text(), d.text()
		e.Ahead, e.Within, e.Uptime = time.Duration(d.s()), d.d(), d.d()
		e.Place = -1
		if len(d.body) > 0 {
			e.Place = d.int() - 1
		}
	}
	return e, !d.bad
}

func (d *decoder) byte() (b byte) {
	if len(d.body) == 0 {
		d.bad = true
		return 0
	}
	b, d.body = d.body[0], d.body[1:]
	return b
}

func (d *decoder) u() uint64 {
	v, n := binary.Uvarint(d.body)
	if n <= 0 {
		d.bad, d.body = true, nil
		return 0
	}
	d.body = d.body[n:]
	return v
}

// s is what binary.AppendVarint has written.
func (d *decoder) s() int64 {
	u := d.u()
	return int64(u>>1) ^ -int64(u&1)
}

// d returns a duration, of a hundred years at most.
func (d *decoder) d() time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return time.Duration(min(d.u(), uint64(most)))
}

func (d *decoder) int() int { return int(min(d.u(), 1<<30)) }

func (d *decoder) count(most uint64) uint64 {
	n := d.u()
	if n > most {
		d.bad = true
		return 0
	}
	return n
}

func (d *decoder) hash() uint64 {
	if len(d.body) < 8 {
		d.bad, d.body = true, nil
		return 0
	}
	h := binary.LittleEndian.Uint64(d.body)
	d.body = d.body[8:]
	return h
}

func (d *decoder) text() string {
	switch n := d.u(); {
	case n == 0:
		return ""
	case n > 1:
		if n-2 >= uint64(len(d.texts)) {
			d.bad = true
			return ""
		}
		return d.texts[n-2]
	}
	n := d.u()
	if n > MaxText || n > uint64(len(d.body)) {
		d.bad, d.body = true, nil
		return ""
	}
	text := string(d.body[:n])
	d.body = d.body[n:]
	d.texts = append(d.texts, text)
	return text
}
