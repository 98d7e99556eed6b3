package conn

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	defaultPort  = 6379
	sentinelPort = 26379
)

// Address says where a master is: at a host and port, at a Unix socket, where a group of
// sentinels says, or where the nodes of a cluster say. It also has the database, whether the master speaks TLS, and possibly a
// username and password, which no method shows. [ParseAddress] makes it. The zero Address is
// that of no master: its String is "(none)", and [Dial] refuses it.
type Address struct {
	host string // lower-case name, or IP address in canonical form
	port uint16
	path string // of a Unix socket; then host is empty
	db   int
	tls  bool

	// Of a master whose place sentinels know; then host and path are empty.
	group     string
	sentinels string // host:port,host:port
	hint      string // where the master was last; see WithHint

	// Of a master whose place the nodes of a cluster know; then host, path and group are empty.
	nodes string // host:port,host:port
	known string // more of them; see WithNodes

	username    string
	password    Secret
	credentials bool // the address has some, though they may be empty
}

// ParseAddress parses an address as users of Redis write it:
//
//	redis://user:password@host:port/db
//	rediss://host:port                 (TLS)
//	unix:///path/to/socket?db=1        (also unix://user:password@/path)
//	host:port, host, [::1]:6379, ::1, fe80::1%eth0
//	sentinel://user:password@host1:26379,host2:26379/group?db=1
//	cluster://user:password@host1:6379,host2:6379?db=1
//
// The port defaults to 6379 and the database to 0. The database may also be given as ?db=1.
// In a scheme, valkey means redis: valkey:// is redis://, and valkeys:// is rediss://.
//
// sentinel:// is the master of a group that sentinels monitor. [Dial] asks them where it
// is. sentinels:// is the same with TLS, to the sentinels and to the master. ParseAddress also
// reads the spellings of other libraries: redis+sentinel://, rediss+sentinel://,
// redis-sentinel:// and rediss-sentinel://. The sentinels' port defaults to 26379. The username
// and password are those of the master. The sentinels are not shown them, but
// [Options.SentinelPassword].
//
// List three sentinels or more, and each of them once: one with two names has two votes. A
// client goes only where more than half of the listed sentinels say that the master is. While
// half of them or more are down, it stays with the master that it knows. A client that knows
// none then connects to nothing, unless [Options.TrustAnySentinel] is set.
//
// cluster:// is the master of one slot of a Redis Cluster: that of [Options.ClusterKey]. Dial asks
// the nodes where it is, and all nodes that they name. So some nodes of the cluster are enough;
// list three, so that one of them can be found. clusters:// is the same with TLS. ParseAddress also
// reads redis+cluster://, rediss+cluster://, redis-cluster:// and rediss-cluster://. The username
// and password are for all nodes.
//
// Percent-encode an @, : or % in a username or password. The error says what is wrong. It never
// quotes the part of s that can hold a password.
func ParseAddress(s string) (Address, error) {
	a, err := parseAddress(s)
	if err != nil {
		return Address{}, fmt.Errorf("conn: address: %w", err)
	}
	return a, nil
}

// String returns the canonical spelling of the address, without the credentials. [ParseAddress]
// makes the same address of it, without credentials.
func (a Address) String() string {
	s, query := "", ""
	if a.tls {
		s = "s"
	}
	if a.db != 0 {
		query = "?db=" + strconv.Itoa(a.db)
	}
	switch {
	case a.isZero():
		return "(none)"
	case a.group != "":
		return "sentinel" + s + "://" + a.sentinels + "/" + url.PathEscape(a.group) + query
	case a.nodes != "":
		return "cluster" + s + "://" + a.nodes + query
	case a.path != "":
		return "unix://" + (&url.URL{Path: a.path}).EscapedPath() + query
	case a.db != 0:
		return "redis" + s + "://" + a.Endpoint() + "/" + strconv.Itoa(a.db)
	case a.tls:
		return "rediss://" + a.Endpoint()
	}
	return a.Endpoint()
}

// Redact returns the canonical spelling of an address without its credentials, for a log. If
// s is no address, it returns "(malformed)": such a text may hold a password anywhere.
func Redact(s string) string {
	a, err := ParseAddress(s)
	if err != nil {
		return "(malformed)"
	}
	return a.String()
}

// RedactAll returns [Redact] of each address, in a new slice.
func RedactAll(addresses []string) []string {
	all := make([]string, len(addresses))
	for i, address := range addresses {
		all[i] = Redact(address)
	}
	return all
}

// Format formats what [Address.String] returns. So no verb shows a password.
func (a Address) Format(s fmt.State, verb rune) {
	fmt.Fprintf(s, fmt.FormatString(s, verb), a.String())
}

// Endpoint returns the canonical spelling of the socket: "host:port", or the path of a Unix
// socket. Two addresses with the same Endpoint are the same master, whatever their database,
// credentials or scheme. Two with different ones can be the same master too, since it can have
// several names: compare [Server.RunID] or [Conn.RemoteAddr].
//
// For a group, Endpoint returns "sentinels/group", and for a cluster its nodes. [Server.Endpoint] has
// the master's own.
func (a Address) Endpoint() string {
	if a.nodes != "" {
		return a.nodes
	}
	if a.group != "" {
		return a.sentinels + "/" + a.group
	}
	if a.path != "" || a.isZero() {
		return a.path
	}
	return net.JoinHostPort(a.host, strconv.Itoa(int(a.port)))
}

// Group returns the name by which the sentinels know the master, or "cluster" for a cluster. It is
// empty for a master with a fixed place.
func (a Address) Group() string {
	if a.nodes != "" {
		return "cluster"
	}
	return a.group
}

// Database returns the number of the database.
func (a Address) Database() int { return a.db }

// Cluster reports whether the address is that of a cluster.
func (a Address) Cluster() bool { return a.nodes != "" }

// WithHint returns the address of the same group with the last known place of its master, such
// as a [Server.Endpoint] or what [FollowGroup] has reported. [Dial] goes to the known place if no
// majority of the sentinels names one. If the server there says that it is no master, Dial
// fails. The server at the known place of a cluster's master is only asked, as the other nodes are.
// An empty endpoint, and what is no host:port, means that no place is known. For a master with a fixed place WithHint returns
// the same address.
func (a Address) WithHint(endpoint string) Address {
	if a.Group() != "" {
		a.hint = ""
		if isPlace(endpoint) {
			a.hint = endpoint
		}
	}
	return a
}

// WithNodes returns the address of the same cluster with more of its nodes that [Dial] asks, such as
// those that [FollowSlot] has reported. What is no host:port is left out. For any other address it returns the same one.
func (a Address) WithNodes(endpoints []string) Address {
	if a.nodes != "" {
		a.known = strings.Join(slices.DeleteFunc(slices.Clone(endpoints), func(s string) bool { return !isPlace(s) }), ",")
	}
	return a
}

// isPlace reports whether it is one host and port: no list of them, say.
func isPlace(endpoint string) bool { return new(Address).parseHostPort(endpoint) == nil }

// isZero reports whether a is an address that ParseAddress has not made.
func (a Address) isZero() bool {
	return a.host == "" && a.path == "" && a.group == "" && a.nodes == ""
}

func parseAddress(s string) (Address, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || !isScheme(scheme) {
		scheme, rest = "redis", s
	}
	a := Address{port: defaultPort}
	unix, sentinel, cluster := false, false, false
	known := strings.ToLower(scheme)
	if rest, ok := strings.CutPrefix(known, "valkey"); ok {
		known = "redis" + rest
	}
	switch known {
	case "redis":
	case "rediss":
		a.tls = true
	case "unix":
		unix = true
	case "sentinel", "redis+sentinel", "redis-sentinel":
		sentinel = true
	case "sentinels", "rediss+sentinel", "rediss-sentinel":
		sentinel, a.tls = true, true
	case "cluster", "redis+cluster", "redis-cluster":
		cluster = true
	case "clusters", "rediss+cluster", "rediss-cluster":
		cluster, a.tls = true, true
	default:
		return a, fmt.Errorf("unknown scheme %q; known are redis, rediss, valkey, valkeys, unix, sentinel, sentinels, cluster and clusters", scheme)
	}

	// The path of a Unix socket may hold an @, and so may a password that is not encoded.
	at := strings.LastIndexByte(rest, '@')
	if unix {
		at = strings.Index(rest, "@/")
		if strings.HasPrefix(rest, "/") {
			at = -1
		}
	}
	if at >= 0 {
		if err := a.parseCredentials(rest[:at]); err != nil {
			return a, err
		}
		rest = rest[at+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	db := ""
	switch {
	case sentinel:
		if err := a.parseGroup(rest); err != nil {
			return a, err
		}
	case cluster:
		rest, db, _ = strings.Cut(rest, "/")
		nodes, err := parseList(rest, defaultPort, "node")
		if err != nil {
			return a, err
		}
		a.nodes, a.port = strings.Join(nodes, ","), 0
	case unix:
		path, err := url.PathUnescape(rest)
		switch {
		case err != nil:
			return a, errors.New("a bad percent-encoding in the path")
		case !strings.HasPrefix(path, "/") || path == "/":
			return a, errors.New("a Unix socket needs an absolute path: unix:///path/to/socket")
		case strings.ContainsRune(path, 0):
			return a, errors.New("a zero byte in the path")
		}
		a.path, a.port = path, 0
	default:
		rest, db, _ = strings.Cut(rest, "/")
		if err := a.parseHostPort(rest); err != nil {
			return a, err
		}
	}
	return a, a.parseDB(db, query)
}

func (a *Address) parseCredentials(s string) error {
	username, password, _ := strings.Cut(s, ":")
	var err1, err2 error
	a.username, err1 = url.PathUnescape(username)
	password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errors.New("a bad percent-encoding in the username or password; a % is written %25")
	}
	a.password, a.credentials = NewSecret(password), true
	return nil
}

func (a *Address) parseGroup(s string) error {
	hosts, name, _ := strings.Cut(s, "/")
	group, err := url.PathUnescape(name)
	switch {
	case err != nil:
		return errors.New("a bad percent-encoding in the name of the group")
	case group == "" || strings.ContainsAny(name, "/"):
		return errors.New("the name of the group is missing: sentinel://host1:26379,host2:26379/name")
	}
	for _, c := range []byte(group) {
		if c <= ' ' || c > '~' {
			return errors.New("the name of the group holds a space, a control character or non-ASCII text")
		}
	}
	all, err := parseList(hosts, sentinelPort, "sentinel")
	if err != nil {
		return err
	}
	a.group, a.sentinels, a.port = group, strings.Join(all, ","), 0
	return nil
}

// parseList reads host:port,host:port as the endpoints of servers of one kind.
func parseList(hosts string, port uint16, kind string) (all []string, err error) {
	for host := range strings.SplitSeq(hosts, ",") {
		one := Address{port: port}
		if err := one.parseHostPort(host); err != nil {
			return nil, fmt.Errorf("a %s: %w", kind, err)
		}
		if slices.Contains(all, one.Endpoint()) {
			return nil, fmt.Errorf("the %s %s is given twice", kind, one.Endpoint())
		}
		all = append(all, one.Endpoint())
	}
	return all, nil
}

func (a *Address) parseHostPort(s string) error {
	host, port, hasPort := s, "", false
	switch {
	case strings.ContainsAny(s, ",;"):
		return errors.New("this is a list; give each address by itself")
	case strings.ContainsAny(s, " \t\r\n"):
		return errors.New("there is a space in it")
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		host, port, ok = strings.Cut(inner, "]")
		if !ok || !strings.Contains(host, ":") {
			return errors.New("an IPv6 address in brackets is written [::1]:6379")
		}
		if port != "" {
			if port, hasPort = strings.CutPrefix(port, ":"); !hasPort {
				return errors.New("only a port can follow the brackets")
			}
		}
		host = strings.Replace(host, "%25", "%", 1)
	} else if strings.Count(s, ":") == 1 {
		host, port, hasPort = strings.Cut(s, ":")
	}
	if host == "" {
		return errors.New("the host is missing")
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		a.host = ip.Unmap().String()
	} else if strings.Contains(host, ":") {
		return errors.New("not an IPv6 address; with a port it is written [::1]:6379")
	} else {
		a.host = strings.ToLower(strings.TrimSuffix(host, "."))
		if !isHostname(a.host) {
			return errors.New("the host is neither a name nor an IP address; a username or password ends with an @")
		}
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return errors.New("the port is not a number from 1 to 65535")
		}
		a.port = uint16(n)
	}
	return nil
}

func (a *Address) parseDB(path, query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("a malformed query after the ?")
	}
	for key, v := range values {
		if key != "db" || len(v) != 1 || path != "" && path != v[0] {
			return errors.New("only one database, and nothing else, can be given after the ?, as ?db=1")
		}
		path = v[0]
	}
	if path == "" {
		return nil
	}
	n, err := strconv.ParseUint(path, 10, 31)
	if err != nil {
		return errors.New("the database is not a number")
	}
	a.db = int(n)
	return nil
}

func isScheme(s string) bool {
	for _, c := range []byte(s) {
		if !(c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.') {
			return false
		}
	}
	return s != ""
}

func isHostname(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_') {
			return false
		}
	}
	return s != ""
}
