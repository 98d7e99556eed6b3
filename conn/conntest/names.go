package conntest

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// Names makes this process look names up at a server of the test, and returns a function by which a name is
// given its IPv4 address. A name that was given none does not exist. It changes net.DefaultResolver, so the test
// must not be parallel. Names in the file of hosts, such as localhost, stay what they are.
func Names(t testing.TB) (set func(name string, addr netip.Addr)) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	names := map[string]netip.Addr{}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for buf := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			name, end := questionIn(buf[:n])
			mu.Lock()
			answer := answerTo(buf[:end], names[name])
			mu.Unlock()
			server.WriteTo(answer, from)
		}
	}()
	was := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = was
		server.Close()
		<-served
	})
	return func(name string, addr netip.Addr) {
		mu.Lock()
		defer mu.Unlock()
		names[name] = addr
	}
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
	case asked == 1:
		answer[7] = 1
		answer = append(answer, 0xc0, dnsHeader, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		answer = append(answer, addr.AsSlice()...)
	}
	return answer
}
