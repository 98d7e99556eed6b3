package redlock

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Zero values of what New and NewMutex make say how they are made.

// A Client and a Mutex that nobody has made say so.
func TestZeroValuesSayHowTheyAreMade(t *testing.T) {
	ctx := t.Context()
	for name, use := range map[string]func(m *Mutex){
		"TryLock":   func(m *Mutex) { m.TryLock(ctx) },
		"Lock":      func(m *Mutex) { m.Lock(ctx) },
		"Extend":    func(m *Mutex) { m.Extend(ctx) },
		"KeepAlive": func(m *Mutex) { m.KeepAlive(ctx) },
		"Unlock":    func(m *Mutex) { m.Unlock(ctx) },
		"Remaining": func(m *Mutex) { m.Remaining() },
	} {
		t.Run("Mutex."+name, func(t *testing.T) {
			require.PanicsWithValue(t, "redlock: a zero Mutex cannot be used: make it with Client.NewMutex", func() { use(new(Mutex)) })
		})
	}
	for name, use := range map[string]func(c *Client){
		"NewMutex": func(c *Client) { c.NewMutex("k", time.Second) },
		"Do":       func(c *Client) { c.Do(ctx, "k", time.Second, nil) },
		"Holders":  func(c *Client) { c.Holders(ctx, "k") },
		"Stats":    func(c *Client) { c.Stats() },
		"Close":    func(c *Client) { c.Close() },
	} {
		t.Run("Client."+name, func(t *testing.T) {
			require.PanicsWithValue(t, "redlock: a zero Client cannot be used: make it with Open or New", func() { use(new(Client)) })
		})
	}
	require.Empty(t, new(Mutex).Key())
	require.Empty(t, new(Mutex).Token())
}

// Each call that is given no context says so, before it has begun anything.
func TestACallWithoutAContextSaysSo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		const says = "redlock: the context is nil"
		var none context.Context
		require.PanicsWithValue(t, says, func() { Open(none, Config{}) })
		found := 0
		for _, of := range []reflect.Value{reflect.ValueOf(c), reflect.ValueOf(c.NewMutex("k", ttl))} {
			for i := range of.NumMethod() {
				name, call := of.Type().Method(i).Name, of.Method(i)
				if call.Type().NumIn() == 0 || call.Type().In(0) != reflect.TypeFor[context.Context]() {
					continue
				}
				var args []reflect.Value
				for j := range call.Type().NumIn() {
					args = append(args, reflect.Zero(call.Type().In(j)))
				}
				found++
				require.PanicsWithValue(t, says, func() {
					if call.Type().IsVariadic() {
						call.CallSlice(args)
					} else {
						call.Call(args)
					}
				}, name)
			}
		}
		require.Greater(t, found, 12)
		require.Empty(t, r.logs(0))
	})
}
