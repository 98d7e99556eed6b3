//go:build linux

package network

import (
	"encoding/binary"
	"net/netip"
)

// maxPacket is more than a TUN device's MTU.
const maxPacket = 1 << 16

// A packet is one of IPv4.
type packet struct {
	bytes    []byte
	tcp      []byte         // the header of TCP, and what follows; nil if there is none
	from, to netip.AddrPort // without a port, if it is not TCP
}

const (
	ipSize  = 20
	tcpSize = 20
	isTCP   = 6 // the protocol's number

	flagFIN = 1 << 0
	flagSYN = 1 << 1
	flagRST = 1 << 2
	flagACK = 1 << 4
)

// parse is false for what is not IPv4: each system sends some of IPv6 unasked.
func parse(bytes []byte) (p packet, ok bool) {
	if len(bytes) < ipSize || bytes[0]>>4 != 4 || int(binary.BigEndian.Uint16(bytes[2:])) != len(bytes) {
		return packet{}, false
	}
	p.bytes = bytes
	source, target := netip.AddrFrom4([4]byte(bytes[12:16])), netip.AddrFrom4([4]byte(bytes[16:20]))
	var ports [2]uint16
	if size := int(bytes[0]&15) * 4; bytes[9] == isTCP && len(bytes) >= size+tcpSize {
		p.tcp = bytes[size:]
		ports = [2]uint16{binary.BigEndian.Uint16(p.tcp), binary.BigEndian.Uint16(p.tcp[2:])}
	}
	p.from, p.to = netip.AddrPortFrom(source, ports[0]), netip.AddrPortFrom(target, ports[1])
	return p, true
}

func (p packet) seq() uint32 { return binary.BigEndian.Uint32(p.tcp[4:]) }
func (p packet) ack() uint32 { return binary.BigEndian.Uint32(p.tcp[8:]) }
func (p packet) flags() byte { return p.tcp[13] }

// length is how many numbers of the sequence it has.
func (p packet) length() (n uint32) {
	n = uint32(len(p.tcp) - int(p.tcp[12]>>4)*4)
	for _, flag := range []byte{flagSYN, flagFIN} {
		if p.flags()&flag != 0 {
			n++
		}
	}
	return n
}

// begins says whether it is a connection's first.
func (p packet) begins() bool { return p.flags()&(flagSYN|flagACK) == flagSYN }

// reply returns the reset with which a system answers it that knows no such connection (RFC 9293,
// 3.10.7.1); nil if that has no answer.
func (p packet) reply() []byte {
	switch {
	case p.flags()&flagRST != 0:
		return nil
	case p.flags()&flagACK != 0:
		return segment(p.to, p.from, p.ack(), 0, flagRST)
	}
	return segment(p.to, p.from, 0, p.seq()+p.length(), flagRST|flagACK)
}

// end returns the reset that its sender might have sent in its place; nil if there is no connection
// yet. If its number is not what the receiver awaits, that answers with the right one, and
// is answered in turn.
func (p packet) end() []byte {
	if p.begins() {
		return nil
	}
	return segment(p.from, p.to, p.seq(), 0, flagRST)
}

// segment is a packet of TCP without data.
func segment(from, to netip.AddrPort, seq, ack uint32, flags byte) []byte {
	source, target := from.Addr().As4(), to.Addr().As4()
	tcp := make([]byte, 0, tcpSize)
	tcp = binary.BigEndian.AppendUint16(tcp, from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = binary.BigEndian.AppendUint32(tcp, seq)
	tcp = binary.BigEndian.AppendUint32(tcp, ack)
	tcp = append(tcp, tcpSize/4<<4, flags, 0, 0, 0, 0, 0, 0)
	pseudo := append(append(source[:], target[:]...), 0, isTCP, 0, tcpSize)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))

	ip := []byte{4<<4 | ipSize/4, 0, 0, ipSize + tcpSize, 0, 0, 0, 0, 64, isTCP, 0, 0}
	ip = append(append(ip, source[:]...), target[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(ip, tcp...)
}

// checksum is that of RFC 1071, for an even number of bytes.
func checksum(bytes []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(bytes); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(bytes[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
