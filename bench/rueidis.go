package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/rueidis"
)

// openRueidis opens rueidis in its default mode, automatic pipelining, with
// the client-side cache off, which a lock has no use for.
//
// The adapter is not redsync's own, which stands on rueidiscompat, a further
// module, but stands on the client itself, with one conversion less.
func openRueidis(e Endpoint, _ int) (redsyncredis.Pool, func() error, error) {
	c, err := rueidis.NewClient(rueidisOption(e))
	if err != nil {
		return nil, nil, err
	}
	return rueidisPool{c}, func() error { c.Close(); return nil }, nil
}

func rueidisOption(e Endpoint) rueidis.ClientOption {
	opt := rueidis.ClientOption{
		InitAddress:       []string{e.Addr},
		TLSConfig:         e.TLS,
		Password:          e.Password,
		Dialer:            net.Dialer{Timeout: time.Second},
		ConnWriteTimeout:  roundTimeout,
		ForceSingleClient: true,
		DisableCache:      true,
		DisableRetry:      true,
	}
	if e.Network == "unix" {
		opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "unix", addr)
		}
	}
	return opt
}

type rueidisPool struct{ client rueidis.Client }

func (p rueidisPool) Get(ctx context.Context) (redsyncredis.Conn, error) {
	return rueidisConn{p.client, ctx}, nil
}

type rueidisConn struct {
	client rueidis.Client
	ctx    context.Context
}

func (c rueidisConn) do(cmd rueidis.Completed) rueidis.RedisResult { return c.client.Do(c.ctx, cmd) }

func (c rueidisConn) Get(name string) (string, error) {
	s, err := c.do(c.client.B().Get().Key(name).Build()).ToString()
	return s, unlessNil(err)
}

func (c rueidisConn) Set(name, value string) (bool, error) {
	err := c.do(c.client.B().Set().Key(name).Value(value).Build()).Error()
	return err == nil, err
}

func (c rueidisConn) SetNX(name, value string, expiry time.Duration) (bool, error) {
	err := c.do(c.client.B().Set().Key(name).Value(value).Nx().Px(expiry).Build()).Error()
	return err == nil, unlessNil(err)
}

func (c rueidisConn) PTTL(name string) (time.Duration, error) {
	ms, err := c.do(c.client.B().Pttl().Key(name).Build()).AsInt64()
	return time.Duration(ms) * time.Millisecond, err
}

func (c rueidisConn) Eval(script *redsyncredis.Script, keysAndArgs ...any) (any, error) {
	words := make([]string, len(keysAndArgs))
	for i, a := range keysAndArgs {
		words[i] = word(a)
	}
	keys, args := words[:script.KeyCount], words[script.KeyCount:]
	r := c.do(c.client.B().Evalsha().Sha1(script.Hash).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	if err, ok := errors.AsType[*rueidis.RedisError](r.Error()); ok && err.IsNoScript() {
		r = c.do(c.client.B().Eval().Script(script.Src).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
	}
	v, err := r.ToAny()
	return v, unlessNil(err)
}

func (c rueidisConn) ScriptLoad(script *redsyncredis.Script) error {
	sha, err := c.do(c.client.B().ScriptLoad().Script(script.Src).Build()).ToString()
	if err == nil {
		script.Hash = strings.Clone(sha)
	}
	return err
}

func (c rueidisConn) Close() error { return nil }

func unlessNil(err error) error {
	if rueidis.IsRedisNil(err) {
		return nil
	}
	return err
}

// word is an argument as it goes on the wire. redsync passes strings and ints.
func word(a any) string {
	if s, ok := a.(string); ok {
		return s
	}
	return fmt.Sprint(a)
}
