package quorum

import (
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// A witness is a key on a master that tells all clients since when the master has forgotten nothing. It has no TTL, and
// there is one for each prefix. What it tells is lost where locks are lost: with the disk, or by a flush. And it names
// the process, as one that was restarted may have forgotten the latest locks with its disk in place.
//
// It is written by compare-and-set, and read back. A client that finds another process writes that, and keeps when the
// master was born. So of many clients that find it at once, one writes.
//
// The list that a witness speaks of has no name but the prefix. A name made of the masters' addresses would forget the
// list at each Replace, and masters of two lists with one prefix are believed the later for it, and never the earlier.
type witness struct {
	run, repl, epoch string // the process, as it has named itself
	since            stamp  // known without a break since then
	number           int64  // ... of how many births of the master
	birth            string // the name of the latest, which no two have
	born             stamp  // ... and when that was: it has kept its memory since then, with its disk
	first            bool   // no lock can have been taken when this was left
	used             bool   // locks may have been taken on the list since
}

// A stamp is a moment by two clocks, in microseconds: the master's wall clock, and that of the client who wrote it.
// Either may be wrong, or set later. So what has passed since is the lesser of two differences.
type stamp struct{ master, client int64 }

// sameWithin is how far a client's wall clock may be from a master's for the two to agree.
const sameWithin = time.Minute

// A clocks is the client's wall clock, and by how much a master's is ahead of that.
type clocks struct {
	wall          time.Duration
	ahead, within time.Duration
	known         bool // the master has told its time
}

// stamp is a moment that was d ago.
func (c clocks) stamp(d time.Duration) stamp {
	s := stamp{client: (c.wall - d).Microseconds()}
	if c.known {
		s.master = (c.wall + c.ahead + c.within - d).Microseconds()
	}
	return s
}

// age is what has passed since, at the least. A master that does not tell its time is not asked.
func (c clocks) age(s stamp) time.Duration {
	least, _ := c.ages(s)
	return least
}

// ages is what has passed since by the two clocks, the lesser first.
func (c clocks) ages(s stamp) (least, most time.Duration) {
	d := c.wall - time.Duration(s.client)*time.Microsecond
	least, most = d, d
	if c.known && s.master != 0 {
		d = c.wall + c.ahead - time.Duration(s.master)*time.Microsecond
		least, most = min(least, d), max(most, d)
	}
	return max(0, least), max(0, most)
}

// agree reports whether the client's clock and the master's are alike.
func (c clocks) agree() bool { return c.known && c.ahead.Abs()+c.within < sameWithin }

// off reports whether the clocks were not alike by which a stamp was written.
func (s stamp) off() bool {
	return s.master != 0 && (time.Duration(s.client-s.master)*time.Microsecond).Abs() > 2*sameWithin
}

// parseWitness reads a witness. ok is false for what is none, or is of a later version.
func parseWitness(text string) (w witness, ok bool) {
	f := strings.Split(text, " ")
	if len(f) != 11 || f[0] != "1" {
		return w, false
	}
	var n [5]int64
	for i, at := range [...]int{4, 5, 6, 8, 9} {
		var err error
		if n[i], err = strconv.ParseInt(f[at], 10, 64); err != nil || n[i] < 0 {
			return w, false
		}
	}
	return witness{run: f[1], repl: f[2], epoch: f[3], since: stamp{n[0], n[1]}, number: n[2], birth: f[7], born: stamp{n[3], n[4]},
		first: strings.Contains(f[10], "first"), used: strings.Contains(f[10], "used")}, true
}

func (w witness) String() string {
	flags := "-"
	switch {
	case w.first && w.used:
		flags = "first,used"
	case w.first:
		flags = "first"
	case w.used:
		flags = "used"
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return strings.Join([]string{"1", w.run, w.repl, w.epoch, n(w.since.master), n(w.since.client), n(w.number), w.birth,
		n(w.born.master), n(w.born.client), flags}, " ")
}

// setProcess has the witness name a server's process.
func (w *witness) setProcess(s conn.Server) {
	or := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	w.run, w.repl, w.epoch = or(s.RunID), or(s.ReplID), or(s.Epoch)
}

// names reports whether the witness is about a server's process, and that was nobody's replica in between.
//
// A server gets a new replication id when it is promoted, and keeps the former as its second id. A master also gets a
// new id with its first replica, even one that only copies (redis-cli --rdb), and has forgotten nothing. Then it has no
// second id. In a group of sentinels and in a cluster servers do get promoted, and may have lost their second id since.
//
// A node of a cluster that is given a slot raises its config epoch. So if that is the same, the slot was not
// another's in between.
func (w witness) names(s conn.Server) bool {
	var is witness
	is.setProcess(s)
	return w.run == is.run && w.epoch == is.epoch && (w.repl == is.repl || s.Group == "" && s.ReplID2 == "" && !s.Cluster)
}

var setWitness = script.NewRare(`
	if (redis.call('GET', KEYS[1]) or '') == ARGV[1] then
		redis.call('SET', KEYS[1], ARGV[2])
	end
	return 0
`)

// An inquiry is what a master is asked, by what its answer tells.
type inquiry uint8

const (
	asksNothing     inquiry = iota // what it answers does not matter
	asksWitness                    // what stands there
	asksReplication                // whether it was a replica
	asksEpoch                      // whether the slot was another's
)

// appendRead appends the question for the witness: its change is told then, if the server can.
func appendRead(dst []byte, asked []inquiry, key string, tracked bool) ([]byte, []inquiry) {
	if tracked {
		dst = resp.AppendCommand(dst, "CLIENT", "CACHING", "YES")
		asked = append(asked, asksNothing)
	}
	return resp.AppendCommand(dst, "GET", key), append(asked, asksWitness)
}

// appendWrite appends what sets the witness if it is still the old one, and reads it back.
func appendWrite(dst []byte, key, old, new string, tracked bool) ([]byte, []inquiry) {
	dst = resp.AppendBulkString(resp.AppendBulkString(setWitness.AppendText(dst, 2, key), old), new)
	return appendRead(dst, []inquiry{asksNothing}, key, tracked)
}

// appendWho appends the questions whether a server that has lost all that it had is still what it was. One that had not
// said so before is not asked.
func appendWho(dst []byte, asked []inquiry, s *conn.Server) ([]byte, []inquiry) {
	if s.ReplID != "" {
		dst, asked = resp.AppendCommand(dst, "INFO", "replication"), append(asked, asksReplication)
	}
	if s.Epoch != "" {
		dst, asked = resp.AppendCommand(dst, "CLUSTER", "INFO"), append(asked, asksEpoch)
	}
	return dst, asked
}
