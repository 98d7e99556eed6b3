package conn

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Dial connects to a master and makes the connection ready for commands. It asks for the
// credentials, asks the sentinels or the cluster's nodes if there are any, and looks the name up. It tries the addresses
// in the resolver's order, each within its share of the time that is left, or asks [Options.Dialer]. Then it makes the
// handshake. It parks the goroutine until that is done, until ctx ends or until
// [Options.DialTimeout] has passed, and [Options.Patience] if a server has taken the connection. If
// it fails, it leaves nothing behind.
//
// The error is an [*Error]. Tell the cases apart with [errors.Is]:
//
//   - [ErrRefused]: another try is of no use before somebody has changed something.
//   - [ErrNotMaster]: the server is a replica.
//   - the error of ctx: ctx ended.
//   - [os.ErrDeadlineExceeded], and not the error of ctx: the dial timeout passed, and the patience.
func Dial(ctx context.Context, addr Address, opt Options) (*Conn, error) {
	timeout := opt.dialTimeout()
	dctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("the dial timeout of %v passed: %w", timeout, os.ErrDeadlineExceeded))
	defer cancel()

	d := dialing{addr: addr, opt: &opt, caller: ctx}
	c, op, err := d.run(dctx)
	if d.patient != nil {
		defer d.endPatience()
		dctx = d.patient
	}
	if err == nil {
		return c, nil
	}
	err = causeOf(err)
	// The code below can notice a deadline before the context does.
	if at, _ := dctx.Deadline(); !time.Now().Before(at) {
		<-dctx.Done()
	}
	// Say which context ended, whatever the error from below looks like: to the caller the
	// dial timeout must not look like the end of its own context.
	if why := ctx.Err(); why != nil {
		if !errors.Is(err, why) {
			err = fmt.Errorf("%w: %w", why, err)
		}
	} else if dctx.Err() != nil {
		if why := context.Cause(dctx); errors.Is(err, context.DeadlineExceeded) {
			err = why
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("%w: %w", why, err)
		}
	}
	return nil, &Error{Addr: addr.String(), Op: op, Err: err}
}

// dialing is one Dial under way.
type dialing struct {
	addr   Address
	opt    *Options
	poller *Poller
	caller context.Context // of Dial; nil for an asker, which has no patience

	patient     context.Context // that of the latest connection, if there is patience; nil before
	endPatience context.CancelFunc
	credentials Credentials
}

// run returns the connection, or the Op that failed and its error.
func (d *dialing) run(ctx context.Context) (c *Conn, op string, err error) {
	if d.addr.isZero() {
		return nil, "resolve", &RefusedError{Reason: "the address is empty", Remedy: "make it with ParseAddress"}
	}
	if err := d.authenticate(ctx); err != nil {
		return nil, "credentials", err
	}
	if d.poller, err = NewPoller(); err != nil {
		return nil, "connect", err
	}
	defer d.poller.Close()
	switch {
	case d.addr.group != "":
		return d.runGroup(ctx)
	case d.addr.nodes != "":
		return d.runCluster(ctx)
	}
	return d.connectTo(ctx, d.addr)
}

// runGroup connects to the master of a group.
func (d *dialing) runGroup(ctx context.Context) (*Conn, string, error) {
	p, disagreement, err := d.addr.locate(ctx, d.opt)
	if err != nil {
		return nil, "sentinel", err
	}
	var at Address
	if err := at.parseHostPort(p.endpoint); err != nil {
		return nil, "sentinel", fmt.Errorf("the sentinels say it is at %q: %w", p.endpoint, err)
	}
	at.tls, at.db = d.addr.tls, d.addr.db
	c, op, err := d.connectTo(ctx, at)
	switch {
	case err == nil:
		c.server.Group, c.server.MasterFor = d.addr.group, p.masterFor
		return c, "", nil
	case disagreement != nil:
		return nil, op, fmt.Errorf("%s: %w; %v", p.endpoint, causeOf(err), disagreement)
	}
	return nil, op, errorAt(p.endpoint, err)
}

// errorAt says where a group's master is, which has failed.
func errorAt(endpoint string, err error) error { return fmt.Errorf("%s: %w", endpoint, causeOf(err)) }

// connectTo connects to a fixed place and shakes hands with the server there.
func (d *dialing) connectTo(ctx context.Context, at Address) (*Conn, string, error) {
	c, wait, op, err := d.open(ctx, at)
	if err != nil {
		return nil, op, err
	}
	h := handshake{ctx: cmp.Or(d.patient, ctx), conn: c, opt: d.opt, db: at.db, group: d.addr.Group(),
		cluster: d.addr.Cluster(), credentials: d.credentials, wait: wait}
	c.server, err = h.run()
	c.server.Endpoint, c.server.Remote = at.Endpoint(), c.remote
	d.poller.remove(c.sock)
	if err != nil {
		c.Abort()
		opt := *d.opt
		switch { // it can serve without what the probes look for, and without our name
		case commandsOf(h.ended) != 0:
			opt.Probe = false
		case h.ended == "CLIENT SETNAME":
			opt.ClientName = ""
		case c.tls != nil:
			return nil, "handshake", refusedTLS(err)
		default:
			return nil, "handshake", err
		}
		if ctx.Err() == nil {
			d.opt = &opt
			return d.connectTo(ctx, at)
		}
		return nil, "handshake", err
	}
	return c, "", nil
}

// open makes the connection, with TLS if that is asked for, and leaves it in the poller.
func (d *dialing) open(ctx context.Context, at Address) (c *Conn, wait func(Interest) error, op string, err error) {
	s, remote, op, err := d.reach(ctx, at)
	if err != nil {
		return nil, nil, op, err
	}
	c = newConn(d.addr.String(), s, d.opt)
	c.remote, c.until, c.told[0] = remote, d.credentials.Until, d.credentials.Password
	opened := c // c is nil by the time an error is returned
	defer func() {
		if err != nil {
			opened.Abort()
		}
	}()
	if err := d.poller.add(s, 0, Readable); err != nil {
		return nil, nil, "connect", err
	}
	wait = d.waitOn(ctx, c, at)
	if at.path == "" && (at.tls || d.opt.TLS != nil) {
		name, _, _ := strings.Cut(at.host, "%") // its certificate has no zone
		c.tls = newTLSLayer(c, d.opt.TLS, name)
		if err := c.tls.handshake(cmp.Or(d.patient, ctx), wait); err != nil {
			if _, ok := err.(tls.RecordHeaderError); ok {
				err = fmt.Errorf("%w; is this a port without TLS?", err)
			} else if ctx := cmp.Or(d.patient, ctx); ctx.Err() == context.DeadlineExceeded {
				err = ofKind{c.tls.unanswered(context.Cause(ctx)), ErrUnanswered}
			}
			return nil, nil, "tls", refusedTLS(quoted(err, c.Hide))
		}
	}
	return c, wait, "", nil
}

// reach connects a socket to a place. remote is where that is.
func (d *dialing) reach(ctx context.Context, at Address) (s *sock, remote, op string, err error) {
	if d.opt.Dialer != nil {
		if !d.addr.lists(at) {
			err = checkNamed(at.host)
		}
		if err == nil {
			s, err = dialBy(ctx, d.opt.Dialer, at)
		}
		return s, at.Endpoint(), "connect", err
	}
	targets, err := resolve(ctx, at)
	if err != nil {
		return nil, "", "resolve", err
	}
	if !d.addr.lists(at) {
		if targets = slices.DeleteFunc(targets, isLinkLocal); len(targets) == 0 {
			return nil, "", "connect", errLinkLocal
		}
	}
	s, to, err := d.connect(ctx, targets)
	return s, to.String(), "connect", err
}

// dialBy has the user's Dialer connect.
func dialBy(ctx context.Context, dialer func(context.Context, string, string) (net.Conn, error), at Address) (*sock, error) {
	network := "tcp"
	if at.path != "" {
		network = "unix"
	}
	nc, err := dialer(ctx, network, at.Endpoint())
	if err != nil {
		return nil, foreign(err)
	}
	if nc == nil {
		return nil, errors.New("the Dialer has returned neither a connection nor an error")
	}
	return sockOf(nc)
}

// waitOn returns what waits for a connection that was made: until ctx ends, and for as long as there is patience.
func (d *dialing) waitOn(ctx context.Context, c *Conn, at Address) (wait func(Interest) error) {
	if d.caller == nil || d.opt.Patience <= 0 {
		return func(want Interest) error { return awaitAnswer(ctx, d.poller, c.sock, want) }
	}
	if d.endPatience != nil {
		d.endPatience()
	}
	until, _ := ctx.Deadline()
	d.patient, d.endPatience = context.WithDeadlineCause(d.caller, until.Add(d.opt.Patience),
		fmt.Errorf("the dial timeout of %v passed, and %v more: %w", d.opt.dialTimeout(), d.opt.Patience, os.ErrDeadlineExceeded))
	patient, told := d.patient, d.opt.OnPatience == nil
	return func(want Interest) error {
		err := d.poller.await(ctx, c.sock, want)
		if err == nil || ctx.Err() == nil {
			return err
		}
		if !told && patient.Err() == nil {
			told = true
			d.tell(c, at, fmt.Errorf("%w; it has taken the connection, and is waited for", context.Cause(ctx)))
		}
		return awaitAnswer(patient, d.poller, c.sock, want)
	}
}

// tell tells that a server has not answered in time.
func (d *dialing) tell(c *Conn, at Address, err error) {
	op := "handshake"
	if c.tls != nil && c.tls.wire.wait != nil {
		op, err = "tls", c.tls.unanswered(err)
	}
	d.opt.OnPatience(at.Endpoint(), &Error{Addr: d.addr.String(), Op: op, Err: err})
}

func (d *dialing) authenticate(ctx context.Context) (err error) {
	switch {
	case d.opt.Credentials != nil:
		if d.credentials, err = d.opt.Credentials(ctx, d.addr.String()); err != nil && ctx.Err() == context.DeadlineExceeded {
			err = ofKind{err, ErrUnanswered}
		}
		if config := d.credentials.TLS; config != nil && d.speaksTLS() {
			opt := *d.opt
			opt.TLS = config
			d.opt = &opt
		}
	default:
		d.credentials = d.opt.CredentialsFor(d.addr)
	}
	return err
}

// speaksTLS reports whether the master does, if it is not on a Unix socket.
func (d *dialing) speaksTLS() bool { return d.addr.tls || d.opt.TLS != nil }

func (d *dialing) connect(ctx context.Context, targets []target) (*sock, target, error) {
	var failed error
	refused := 0
	for i, to := range targets {
		sctx, cancel := share(ctx, len(targets)-i)
		s, err := dialSock(sctx, d.poller, to)
		cancel()
		if err == nil {
			return s, to, nil
		}
		if isRefusal(err) || to.path != "" && errors.Is(err, fs.ErrNotExist) {
			refused++
		}
		if len(targets) > 1 {
			err = fmt.Errorf("%v: %w", to, err)
		}
		failed = join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	if refused == len(targets) && refused > 0 {
		failed = ofKind{failed, ErrNoListener}
	}
	return nil, target{}, failed
}

// share bounds the next one of several tries by its share of the time that is left.
func share(ctx context.Context, tries int) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // that of Dial
	d := time.Until(deadline) / time.Duration(tries)
	return context.WithTimeoutCause(ctx, d,
		fmt.Errorf("no answer within %v, its share of the dial timeout: %w", d.Round(time.Millisecond), os.ErrDeadlineExceeded))
}

// causeOf returns the cause of an [*Error] from a read or write of the handshake, because
// the error of Dial names the master already.
func causeOf(err error) error {
	if inner, ok := err.(*Error); ok {
		return inner.Err
	}
	return err
}

// join is errors.Join for a text of one line.
func join(all, err error) error {
	if all == nil {
		return err
	}
	return fmt.Errorf("%w; %w", all, err)
}
