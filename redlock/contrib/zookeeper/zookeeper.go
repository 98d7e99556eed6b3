package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// The defaults of the options.
const (
	DefaultTimeout = 10 * time.Second
	DefaultRoot    = "/redlock"
)

// An Option is a setting of New.
type Option func(*store)

// WithTimeout sets the session's timeout, which is after how long others can have the locks of a process that has died.
// The servers may agree to another: by default, to no less than 2 and no more than 20 of their ticks. The default is
// DefaultTimeout. A request that is not answered within a third of it, or a second if that is more, has failed.
func WithTimeout(timeout time.Duration) Option { return func(s *store) { s.timeout = timeout } }

// WithRoot sets the path of the node that has all others below it. It is made if it is not there. The
// default is DefaultRoot.
func WithRoot(root string) Option { return func(s *store) { s.root = root } }

// WithAuth sets credentials, as for zk.Conn.AddAuth, and the ACL of all nodes that are made. By default there are none,
// and everybody may do everything with the nodes.
func WithAuth(scheme string, credentials []byte, acl []zk.ACL) Option {
	return func(s *store) { s.scheme, s.credentials, s.acl = scheme, credentials, acl }
}

// WithDialer sets how connections are made, for TLS. The default is net.DialTimeout.
func WithDialer(dial zk.Dialer) Option { return func(s *store) { s.dial = dial } }

// A Second takes locks in a ZooKeeper ensemble. It is a redlock.Second. Any number of goroutines may use it.
type Second struct {
	store  *store
	second *second.Second
}

var _ redlock.Second = (*Second)(nil)

// New makes a Second of the servers of an ensemble, each "host" or "host:port". It does not wait for them: the
// first lock opens the session. One session has one connection to one server at a time.
func New(servers []string, opts ...Option) (*Second, error) {
	if len(servers) == 0 {
		return nil, errors.New("zookeeper: no servers")
	}
	s := &store{
		servers: servers, timeout: DefaultTimeout, root: DefaultRoot, acl: zk.WorldACL(zk.PermAll), dial: net.DialTimeout,
	}
	for _, opt := range opts {
		opt(s)
	}
	if s.timeout < time.Millisecond {
		return nil, errors.New("zookeeper: the timeout must be a millisecond or more")
	}
	if !path.IsAbs(s.root) || path.Clean(s.root) != s.root || s.root == "/" {
		return nil, fmt.Errorf("zookeeper: root %q is no path like /locks", s.root)
	}
	return &Second{store: s, second: second.New("zookeeper", s, s.timeout)}, nil
}

// TryLock takes the lock of a key, or fails at once, with an error that wraps redlock.ErrHeld if another has it
// or waits for it.
func (s *Second) TryLock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.second.TryLock(ctx, key)
}

// Lock takes the lock of a key. It waits for it until ctx ends. Those who wait have it in the order in which
// they came.
func (s *Second) Lock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.second.Lock(ctx, key)
}

// Close ends the session, and with it all locks and their contexts, and waits until no goroutine is left, for a
// few seconds at most. An error says that ZooKeeper has not confirmed it: then the locks are free when the
// timeout has passed. All later calls fail with redlock.ErrClosed.
func (s *Second) Close() error { return s.second.Close() }

// Path returns the path that gives other implementations of the recipe the lock of this key.
func (s *Second) Path(key string) string { return s.store.path(key) }

func (s *store) path(key string) string { return s.root + "/" + escape(key) }

// escape makes a key one step of a path, and no two keys the same.
func escape(key string) string {
	if key == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		switch {
		case (key == "." || key == "..") && i == 0:
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_~:@=+,.", c) >= 0:
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
