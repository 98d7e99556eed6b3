package record

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// flightRecord is a record with one page of these events, as the comment of the package has it. An event is its
// length in two bytes, and its body.
func flightRecord(events []byte) []byte {
	const pageBytes = 4 << 10
	head := append([]byte("redlock\xf1"), 1, 0, 0, 0)
	head = binary.LittleEndian.AppendUint32(head, pageBytes)
	head = binary.LittleEndian.AppendUint32(head, 1)
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, Castagnoli))
	out := append(head, make([]byte, 64<<10-len(head))...)
	p := binary.LittleEndian.AppendUint64(nil, 1)
	p = append(p, make([]byte, 16)...)
	p = binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, Castagnoli))
	p = append(p, 0, 0, 0, 0)
	for number := uint64(1); len(events) >= 2; number++ {
		n := int(binary.LittleEndian.Uint16(events))
		if n = min(n, len(events)-2); n == 0 || len(p)+6+n > pageBytes {
			break
		}
		body := events[2 : 2+n]
		p = binary.LittleEndian.AppendUint16(p, uint16(n))
		p = binary.LittleEndian.AppendUint32(p, Sum(append(make([]byte, Numbers), body...), 1, number))
		p = append(p, body...)
		events = events[2+n:]
	}
	return append(append(out, p...), make([]byte, pageBytes-len(p))...)
}

// flightEvents are bodies of each kind of event, with their lengths.
func flightEvents() (all []byte) {
	for _, body := range []string{
		"\x02\x00\x02\x00\x01\x01k",
		"\x03\x00\x02\x00\x02\x01\x04free",
		"\x04\x00\x02\x00\x02\x01\x04held\x00\x05",
		"\x05\x00\x02\x00\x02\x07\x0912345678",
		"\x09\x00\x02\x00\x02\x0112345678",
		"\x06\x00\x02\x00\x02\x01\x04lost\x01\x02no",
		"\x06\x00\x02\x00\x02\x05\x0612345678",
		"\x07\x00\x02\x00\x01\x03a:1\x01\x02up\x00\x00\x02\x03\x04",
		"\x01\x00\x02\x00\x02\x01\x04lock\x01\x02ok\x00\x01\x05\x06\x07\x08\x09\x03\x01\x0212345678\x01\x01\x01l\x02\x01\x05\x03\x01\x01x",
	} {
		all = append(binary.LittleEndian.AppendUint16(all, uint16(len(body))), body...)
	}
	return all
}

// FuzzFlight reads what a stranger says is a flight record.
func FuzzFlight(f *testing.F) {
	f.Add(flightEvents(), false)
	f.Add(flightRecord(flightEvents())[:65<<10], true)
	f.Add([]byte("redlock\xf1"), true)
	f.Fuzz(func(t *testing.T, text []byte, whole bool) {
		if !whole {
			text = flightRecord(text)
		}
		r, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		last := uint64(0)
		for e := range r.Events() {
			if e.Number <= last || len(e.Key) > 1<<10 || len(e.Votes) > 64 || len(e.Keys) > 64 || e.Took < 0 || e.Validity < 0 {
				t.Fatalf("%+v", e)
			}
			last = e.Number
		}
		_, _ = r.Overwritten(), r.Missing()
	})
}

// What is written here by the comment of the package is what is read.
func TestFlightSeedsAreEvents(t *testing.T) {
	r, err := Read(bytes.NewReader(flightRecord(flightEvents())))
	require.NoError(t, err)
	n := 0
	for e := range r.Events() {
		n++
		require.Equal(t, e.Kind != KindMaster, e.Key == "k", e)
	}
	require.Equal(t, 9, n)
	require.Zero(t, r.Torn+r.BadPages)
}

// Whatever a process is called, there is room for who it is.
func TestLongNamesAreCut(t *testing.T) {
	t.Parallel()
	a := &About{Host: strings.Repeat("<", 1<<16), Program: strings.Repeat("\xff", 1<<16), Clients: make([]Client, 3)}
	require.LessOrEqual(t, len(a.Encode(AboutSize-16)), AboutSize-16)
}

// What a body claims is not believed.
func TestBodyIsNotReadPastItsEnd(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"", "\x02", "\x02\x00\x02\x00\x01\x7fk", "\x02\x00\x02\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01k",
		"\x02\x00\x02\x00\x02", "\x02\x00\x02\x00\x7f", "\x05\x00\x02\x00\x00\x07\x091234567", "\x06\x00\x02\x00\x00\x00\x001234567",
		"\x01\x00\x02\x00\x00\x00\x00\x00\x01\x05\x06\x07\x08\x09\x03\x01\x0212345678\x00\x02\x01\x05",
		"\x01\x00\x02\x00\x00\x00\x00\x00\x01\x05\x06\x07\x08\x09\x03\x01\x0212345678\x41" + strings.Repeat("\x00", 100),
	} {
		require.NotPanics(t, func() {
			_, ok := new(decoder).event([]byte(body))
			require.False(t, ok, "%q", body)
		}, "%q", body)
	}
}
