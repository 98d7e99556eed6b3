package redlocktest

import "errors"

// WithDisks lets [Masters.FailSync] make the disk of each redis-server fail. It needs what
// [WithClocks] needs, and works where that does. The two go together.
func WithDisks() Option {
	return func(o *options) { o.disks = true }
}

// FailSync makes fsync and fdatasync fail with EIO in master i, those that it calls from now
// on, or lets them succeed again. It is as if the disk were broken, and not the kernel: what
// the master writes meanwhile can be read, and a restart finds it. A restart does not undo it.
//
// With "--appendfsync everysec" Redis 7 refuses writes soon after. When its disk is well it
// still does, until a key expires there, or its append-only file is turned off and on. With
// "always" it ends at the next write, before it answers.
func (m *Masters) FailSync(i int, fail bool) {
	m.helper()
	s, ok := m.masters[i].(*server)
	if !ok || s.disk == nil {
		m.must(i, "set the disk of", errNoDisk)
		return
	}
	m.must(i, "set the disk of", s.disk.fail(fail))
}

var errNoDisk = errors.New("it has no disk of its own: start redis-servers with WithDisks")

// A disk is a server's.
type disk struct{ preload }

// The layout of the file after what says that the library is there: one number, which is 1
// while nothing reaches the disk. See preload/disk.c.
const (
	failingAt = 8
	diskBytes = 16
)

// newDisk makes a disk that is well, whose file is in dir.
func newDisk(library, dir string) (*disk, error) {
	p, err := newPreload("disk", library, dir, diskBytes)
	return &disk{p}, err
}

func (d *disk) fail(fail bool) error {
	failing := int64(0)
	if fail {
		failing = 1
	}
	return d.tell(write{failingAt, []int64{failing}})
}
