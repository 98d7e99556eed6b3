//go:build linux

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A Node is a network namespace with an address. All methods may be called by several goroutines at
// once.
type Node struct {
	addr      netip.Addr
	namespace *os.File
	tun       *os.File
}

// Addr returns the node's address, by which all others reach it.
func (n *Node) Addr() netip.Addr { return n.addr }

// Do calls f where the processes that it starts and the sockets that it opens are in the node. They
// stay there. It returns the error of f. What goroutines do that f starts is not in the node.
func (n *Node) Do(f func() error) error { return inside(n.namespace, f) }

// deliver gives the node a packet. If it has no room for it, or is closed, the packet is lost.
func (n *Node) deliver(bytes []byte) {
	if bytes != nil {
		n.tun.Write(bytes)
	}
}

func (n *Node) close() {
	n.tun.Close()
	n.namespace.Close()
}

func newNode(addr netip.Addr, namespace func() (*os.File, error)) (*Node, error) {
	n := &Node{addr: addr}
	var err error
	if n.namespace, err = namespace(); err != nil {
		return nil, err
	}
	if err = n.Do(n.connect); err != nil {
		n.namespace.Close()
		return nil, err
	}
	return n, nil
}

// newNamespace makes a namespace, which lives for as long as the file is open, or a process is in it.
func newNamespace() (file *os.File, err error) {
	here, err := thisNamespace()
	if err != nil {
		return nil, err
	}
	defer here.Close()
	err = inside(here, func() error { // which brings the thread back
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		file, err = thisNamespace()
		return err
	})
	return file, err
}

// ownNamespace is that of this process, if nothing is in it yet.
func ownNamespace() (*os.File, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.Flags&net.FlagLoopback == 0 {
			return nil, errors.New("this process has no network namespace of its own")
		}
	}
	return thisNamespace()
}

// thisNamespace is that of the thread.
func thisNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// inside calls f on a thread that is in the namespace meanwhile. Others do not get to see that: the
// runtime makes its new threads from one that is not locked.
func inside(namespace *os.File, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := thisNamespace()
	if err != nil {
		return err
	}
	defer before.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	defer func() {
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(os.NewSyscallError("setns", err)) // nothing may run on this thread any more
		}
	}()
	return f()
}

// connect makes the TUN device of the namespace that the thread is in.
func (n *Node) connect() error {
	const name = "tun0"
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	if err := configure(tun, name, n.addr); err != nil {
		unix.Close(tun)
		return err
	}
	// Not before: a poller takes notice of a TUN device only if it has been set up.
	n.tun = os.NewFile(uintptr(tun), name)
	return nil
}

func configure(tun int, name string, addr netip.Addr) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(sock)
	bytes := addr.As4()
	for _, step := range []struct {
		fd      int
		name    string
		what    string
		request uint
		set     func(*unix.Ifreq) error
	}{
		{tun, name, "make the device", unix.TUNSETIFF, short(unix.IFF_TUN | unix.IFF_NO_PI)},
		{sock, name, "set the address", unix.SIOCSIFADDR, address(bytes[:])},
		{sock, name, "set the mask", unix.SIOCSIFNETMASK, address([]byte{255, 255, 0, 0})},
		{sock, name, "set it up", unix.SIOCSIFFLAGS, short(unix.IFF_UP | unix.IFF_RUNNING)},
		{sock, "lo", "set it up", unix.SIOCSIFFLAGS, short(unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOOPBACK)},
	} {
		request, err := unix.NewIfreq(step.name)
		if err == nil {
			err = step.set(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(step.fd, step.request, request)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", step.name, step.what, err)
		}
	}
	return nil
}

func short(v uint16) func(*unix.Ifreq) error {
	return func(r *unix.Ifreq) error {
		r.SetUint16(v)
		return nil
	}
}

func address(ip []byte) func(*unix.Ifreq) error {
	return func(r *unix.Ifreq) error { return r.SetInet4Addr(ip) }
}
