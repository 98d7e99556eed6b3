// Package clientname makes and reads the names by which CLIENT LIST on a master shows the clients of this module.
package clientname

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redburst/redburst/conn"
)

// These are Programs.
const (
	Library = "lib"
	Command = "cmd"
)

// Program and Version are those of this process. The command sets them before it makes a client.
var (
	Program = Library
	Version = sync.OnceValue(moduleVersion)
)

// A Name is what the name of a connection says. It is a hint: everybody can have any name.
type Name struct {
	Program string // Library or Command
	Version string // of this module
	List    string // of the list of masters, as by List; empty for one who takes no locks
	Owner   string // the owner in the tokens, or the client's name, or both; may be empty
}

const (
	begin = "redlock/"
	none  = "-"
)

// String returns the name as a master takes it: redlock/lib/v1.2.3/3-9f3a2c1b/billing@host:17. It has no
// spaces, and nothing that is not printable ASCII.
func (n Name) String() string {
	return begin + escape(n.Program, "/") + "/" + escape(cmp.Or(n.Version, none), "/") + "/" + cmp.Or(n.List, none) + "/" + escape(n.Owner, "")
}

// Parse undoes String. It reports false for a name that is none of ours.
func Parse(s string) (Name, bool) {
	rest, ours := strings.CutPrefix(s, begin)
	parts := strings.SplitN(rest, "/", 4)
	if !ours || len(parts) < 4 {
		return Name{}, false
	}
	for i, part := range parts {
		if text, err := url.PathUnescape(part); err == nil {
			parts[i] = text
		}
	}
	if parts[2] == none {
		parts[2] = ""
	}
	return Name{parts[0], parts[1], parts[2], parts[3]}, true
}

// escape writes what a name cannot hold, and what also says, as %20 and so on.
func escape(s, also string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '%' || strings.IndexByte(also, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// List returns how many masters a list has, and a hash of it: 3-9f3a2c1b. The hash is of the addresses with their
// databases, and of nothing else, in any order: no password can be guessed from it, and TLS makes no difference. It goes
// by how the addresses are written. So one list has two hashes if some write the masters' names and others their
// IP addresses.
func List(addresses []string) string {
	all := make([]string, len(addresses))
	for i, a := range addresses {
		text := conn.Redact(a)
		scheme, rest, found := strings.Cut(text, "://")
		if found {
			text = rest
		}
		if sentinels, group, found := strings.Cut(rest, "/"); found && strings.HasPrefix(scheme, "sentinel") {
			each := strings.Split(sentinels, ",")
			slices.Sort(each)
			text = strings.Join(each, ",") + "/" + group
		}
		all[i] = text
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	return fmt.Sprintf("%d-%x", len(all), sum[:4])
}

// Masters returns how many masters a list has, of what List has returned; 0 if it was not List.
func Masters(list string) int {
	n, _, _ := strings.Cut(list, "-")
	masters, _ := strconv.Atoi(n)
	return masters
}

// Who is the Owner of a client with this owner and this name.
func Who(owner, name string) string {
	switch {
	case owner == "":
		return name
	case strings.HasPrefix(owner, name):
		return owner
	}
	return name + "/" + owner
}

const module = "github.com/redburst/redburst"

// moduleVersion is the version of this module in the running program.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	found := info.Main
	for _, m := range info.Deps {
		if m.Path == module {
			found = *m
		}
	}
	if found.Path != module {
		return ""
	}
	return strings.Trim(found.Version, "()") // (devel)
}
