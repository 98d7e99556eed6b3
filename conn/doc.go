// Package conn is one connection to one master: address, socket, TLS, handshake and
// buffers. Nothing in a [Conn] waits; a [Poller] waits for any number of them and
// parks the goroutine, never a thread.
//
//	addr, err := conn.ParseAddress("redis://10.0.0.1:6379")
//	c, err := conn.Dial(ctx, addr, conn.Options{})
//	p, err := conn.NewPoller()
//	err = p.Add(c, 1, conn.Readable)
//	_, err = c.Send(resp.AppendCommand(nil, "PING"))
//	events, err := p.Wait(conn.Now() + time.Second)
//	_, err = c.Receive()
//	reply, err := c.Next()
//
// On Linux the sockets are read and written by raw non-blocking system calls.
// Elsewhere, and on Linux with the build tag redburst_portable, the same API runs on
// net.Conn.
//
// # Masters that move
//
// The address sentinel://host:port,host:port,host:port/group is that of the master of a
// group that Redis Sentinel watches over, wherever it is. [Dial] asks the sentinels for its
// place, and [FollowGroup] tells when it moves. More than half of the sentinels that are listed
// must agree on the place; one that some give by address and some by name is one place. So
// list three or more, and each of them once: see [ParseAddress].
//
// # What the user of a lock must be allowed
//
// A master that uses ACLs needs a user with these rights, for the keys of the locks:
//
//	ACL SETUSER locker on >password resetkeys ~lock:* -@all
//	    +set +eval +evalsha +script|load     the lock's commands
//	    +get +del +pexpire +pttl             what its scripts and its waiters call
//	    +info                                tells a restarted master from one that was only
//	                                         out of reach: without it a lock's client counts
//	                                         it as restarted at every reconnect
//	    +select                              only for another database than 0
//	    +client|tracking +client|caching     optional: waiters are told, and need not ask
//	    +config|get                          optional: exempts one that persists every
//	                                         write from the quarantine after a restart
//	    +role                                optional, for a group's: its own word that it
//	                                         is the master, where HELLO does not tell
//
// HELLO, AUTH and the client name within HELLO are open to every user. What is
// optional, or INFO, and not allowed is listed in [Server.Missing]. NOPERM on SCRIPT LOAD or
// SELECT is a [*RefusedError]. NOPERM on the other commands cannot be seen before they
// are sent, since no server before Redis 7 tells what a user may do: it is the error of
// the first vote, with the master's name.
package conn
