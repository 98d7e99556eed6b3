package conntest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Names makes this process look names up at a server of the test, and returns a function by which a name is
// given its address. A name that was given none does not exist. It changes net.DefaultResolver, so the test
// must not be parallel. Names in the file of hosts, such as localhost, stay what they are.
func Names(t testing.TB) (set func(name string, addr netip.Addr)) {
	t.Helper()
	var mu sync.Mutex
	names := map[string]netip.Addr{}
	was := net.DefaultResolver
	net.DefaultResolver = Resolver(func(name string) netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		return names[name]
	})
	t.Cleanup(func() { net.DefaultResolver = was })
	return func(name string, addr netip.Addr) {
		mu.Lock()
		defer mu.Unlock()
		names[name] = addr
	}
}

// Resolver returns one that asks address for the address of each name. A name for which it returns none does not
// exist. Several goroutines may call it at once.
func Resolver(address func(name string) netip.Addr) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe() // no packets, so it is asked as over TCP
		go func() {
			defer ours.Close()
			for {
				var size [2]byte
				if _, err := io.ReadFull(ours, size[:]); err != nil {
					return
				}
				question := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(ours, question); err != nil {
					return
				}
				name, end := questionIn(question)
				answer := answerTo(question[:end], address(name))
				if _, err := ours.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
					return
				}
			}
		}()
		return theirs, nil
	}}
}

const dnsHeader = 12 // bytes

// questionIn returns the name that is asked for, and where the question ends (RFC 1035, 4.1.2).
func questionIn(message []byte) (name string, end int) {
	var labels []string
	at := dnsHeader
	for at < len(message) && message[at] != 0 {
		next := at + 1 + int(message[at])
		labels = append(labels, string(message[at+1:min(next, len(message))]))
		at = next
	}
	return strings.Join(labels, "."), min(at+5, len(message)) // the root, type and class
}

// answerTo answers a question for the address of a name: by none if that is another type of address, and that
// there is no such name if it has no address.
func answerTo(question []byte, addr netip.Addr) []byte {
	answer := append([]byte(nil), question...)
	binary.BigEndian.PutUint16(answer[2:], 0x8180)               // an answer, with recursion
	copy(answer[6:dnsHeader], make([]byte, dnsHeader-6))         // no answers, and nothing else
	asked := binary.BigEndian.Uint16(question[len(question)-4:]) // its type
	switch {
	case !addr.IsValid():
		answer[3] |= 3
	case asked == 1 && addr.Is4(), asked == 28 && addr.Is6():
		answer[7] = 1
		answer = append(answer, 0xc0, dnsHeader, 0, byte(asked), 0, 1, 0, 0, 0, 0, 0, byte(addr.BitLen()/8))
		answer = append(answer, addr.AsSlice()...)
	}
	return answer
}
