// Package conn implements a connection to one master: address, socket, TLS, handshake and
// buffers. The methods of a [Conn] never wait. A [Poller] waits for any number of
// connections. It parks the goroutine, and never blocks a thread.
//
//	addr, err := conn.ParseAddress("redis://10.0.0.1:6379")
//	c, err := conn.Dial(ctx, addr, conn.Options{})
//	p, err := conn.NewPoller()
//	err = p.Add(c, 1, conn.Readable)
//	_, err = c.Send(resp.AppendCommand(nil, "PING"))
//	events, err := p.Wait(clock.Now() + time.Second)
//	_, err = c.Receive()
//	reply, err := c.Next()
//
// An [Address] is parsed. Where a field or a result is called Addr, it is the text of one.
// Deadlines are moments on the clock of package clock.
//
// On Linux this package reads and writes the sockets with raw non-blocking system calls.
// Elsewhere, and on Linux with the build tag redburst_portable, the same API uses net.Conn.
//
// Once its buffers have grown, a connection allocates nothing. Over TLS it allocates what
// crypto/tls does: 24 bytes whenever crypto/tls asks for a record that was not read yet.
//
// # Compatibility
//
// This package and package clock can be used by themselves, and are not frozen: a minor version may
// change what they export, and the changelog says what. The texts of errors and of [Server.Missing] are for people, and
// can change in any version. Package conntest is for this module's own tests, and promises nothing.
//
// # Masters that move
//
// The address sentinel://host:port,host:port,host:port/group is that of the master of a group
// that Redis Sentinel monitors, wherever the master is. [Dial] asks the sentinels where it is,
// and [FollowGroup] reports when it moves. More than half of the listed sentinels must agree on
// the place. Some may give the place by address and some by name. What fewer of them say moves
// no client, and gives none its first master. So a sentinel that is wrong or hostile chooses no
// master, and leads nobody to a server that is after the credentials. List three sentinels or
// more, and each of them once: see [ParseAddress].
//
// # Clusters
//
// The address cluster://host:port,host:port,host:port is that of the master of one slot of a Redis
// Cluster: of that which the key [Options.ClusterKey] is in. All keys that are sent to it must be in
// that slot. [Dial] asks the listed nodes, and then those that they name, who has the slot, and
// [FollowSlot] asks again about every second.
//
//   - Who the cluster's masters are, and where each is, more than half of the nodes must say: of those that
//     are listed and those that were agreed on last, together. One that is silent counts, and says nothing.
//     Nobody dials another place, nor a link-local address that is not listed. If one node alone is listed, it
//     decides all that until others are agreed on: list three. A cluster may have 500 masters.
//   - Who has the slot, more than half of these masters must say, and be able to serve. What fewer
//     of them say moves no client. So a node that was cut off, forgotten or moved to another cluster
//     is not believed, whatever it says of itself.
//   - The node must say that it is a master, has the slot, and is not giving it away (ASK).
//   - The word of a majority counts for [SlotTrust] from when it was asked for. So does that of the node
//     itself, which also says its config epoch: with another one it was none of the masters for a moment.
//
// With [Options.Witness], a key in the slot tells for how long the node has been its master, which the
// node itself does not say.
//
// A redirection (MOVED, ASK) is never followed: it is one node's word. Nodes announce where they are
// (cluster-announce-ip, -port, -hostname). Those places must lead there from here, too.
//
// # Required ACL permissions
//
// A master that uses ACLs needs a user with these permissions, for the keys of the locks:
//
//	ACL SETUSER locker on >password resetkeys ~lock:* -@all
//	    +set +eval +evalsha +script|load     the lock's commands
//	    +get +del +pexpire +pttl             what its scripts and its waiters call
//	    ~{lock:*}:fence +time                optional: the counters of locks with a fence
//	    ~{lock:*}:writer                     optional: shared locks, and those that wait for them
//	    +time +type +pexpireat +zadd +zrem
//	    +zcard +zscore +zrange +zremrangebyscore
//	    +exists +mget                        optional: locks on several keys
//	    +exists ~{lock:*}:permit*            optional: locks that several can hold
//	    +zrank +zadd +zrem +zrange           optional: those who wait, in several processes, have
//	    ~{lock:*}:line*                      the lock in the order in which they came
//	    +info                                tells a restarted master from one that was only
//	                                         out of reach; without it the client takes the
//	                                         master as restarted at every reconnect
//	    ~{}:since ~{lock:*}:since            tells since when the master has forgotten nothing;
//	                                         without it the client goes by its uptime, or, without
//	                                         a RestartGuard, believes it when it is first connected
//	    +select                              only for a database other than 0
//	    +client|tracking +client|caching     optional: the master tells waiters of a
//	                                         release, so they need not poll
//	    +client|tracking +client|caching     optional: the master tells a holder that renews
//	    +exists                              its lock of a loss, at once
//	    +role                                optional, for a group: the server itself says
//	                                         that it is the master, where HELLO does not
//	    +cluster|slots +cluster|info         only for a cluster; without the second each
//	                                         reconnect counts as a failover
//	    +delex                               optional, Redis 8.4 and later: a release costs the
//	                                         master less than by a script
//	    +delifeq                             optional, Valkey 9.0 and later: likewise
//	    +msetex                              optional, Redis 8.4 and later, Valkey 9.1 and later:
//	                                         so does taking a lock on several keys
//
// A server refuses the whole ACL SETUSER if it does not know one of the commands ("Unknown
// command or category name in ACL"). So leave +delex, +delifeq and +msetex out where the line
// names another server. Where the user lacks them, the scripts do the same. A server that has
// such a command then refuses its first use on each connection, and notes it in its ACL LOG.
//
// With a prefix that has a hash tag, such as {locks}:, all keys begin with it, also those beside a
// lock: ~{locks}:* is enough. With another prefix, such as app:, write ~app:lock:* and
// ~{app:lock:*}:fence and so on, and ~{app:}:since. Who may write that key can have a master that has
// forgotten a lock be believed, and others not: give it to nobody else. For a cluster set the user on each of its nodes.
//
// Better give no right to CONFIG GET: it shows requirepass and masterauth, so that a user who may
// only take locks could do all. No client asks.
//
// The user default needs all rights where the masters have an append-only file, though nobody may log in
// as that user:
//
//	ACL SETUSER default off resetpass ~* +@all
//
// What a script has written by several commands is in the file between MULTI and EXEC, and since Redis 7 a
// server that starts replays it as that user. What that user may not do, it forgets.
//
// Every user may run HELLO and AUTH, and set the client name within HELLO. If the user lacks
// an optional permission, or INFO, [Server.Missing] says so. NOPERM on SCRIPT LOAD or SELECT
// is a [*RefusedError]. NOPERM on another command shows only when the command is sent, since
// no server before Redis 7 tells what a user may do. It is then the error of the first vote,
// with the master's name and, from redlock, with the right that is missing. NOPERM on DELEX,
// DELIFEQ or MSETEX is no error: the script follows.
package conn
