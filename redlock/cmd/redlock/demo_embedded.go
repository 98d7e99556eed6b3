//go:build redburst_embedded

package main

import "github.com/redburst/redburst/redlock/redlocktest"

func init() {
	startEmbedded = func(n int, password string) (demoServers, error) {
		masters, err := redlocktest.RunEmbedded(n, redlocktest.WithPassword(password))
		if err != nil {
			return nil, err
		}
		return embedded{masters}, nil
	}
}

// An embedded is masters inside this process.
type embedded struct{ *redlocktest.Masters }

func (e embedded) Pause(i int) error   { e.Masters.Pause(i); return nil }
func (e embedded) Resume(i int) error  { e.Masters.Resume(i); return nil }
func (e embedded) Kill(i int) error    { e.Masters.Kill(i); return nil }
func (e embedded) Restart(i int) error { e.Masters.Restart(i); return nil }
