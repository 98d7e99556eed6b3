//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/redlocktest"
)

const masterCount = 5

// An arena is what a test takes place in.
type arena struct {
	masters  *redlocktest.Masters // nil if they are roaming
	places   *places              // that they have
	users    users                // of the masters, if there is a spare
	roaming  roaming              // the same, if they are
	traffic  traffic
	spaces   *namespaces      // nil if the traffic goes through links
	group    *processes.Group // its directory goes with this process, however that ends
	dir      string           // the same, of the counters and the journals
	locks    []lockable
	counters map[string]fileCounter
	resource *resource
	fleet    *fleet
	clocks   bool // the masters have clocks of their own
	planted  planted
}

// newArena makes an arena of five masters whose traffic goes through the namespaces, or through links if these are
// nil. The namespaces are the arena's then, also if it fails. If there are more servers than that, one is a spare.
func newArena(servers int, locks []lockable, config clientConfig, unfenced bool, spaces *namespaces, opts ...redlocktest.Option) (*arena, error) {
	a := &arena{locks: locks, spaces: spaces}
	return a.begun(config, unfenced, func(config *clientConfig) (err error) {
		config.Password = rand.Text() // other users of the machine are not to take part
		where := redlocktest.WithLinks()
		if spaces != nil {
			where = redlocktest.WithHosts(spaces.hosts()...)
		}
		if servers > masterCount {
			if a.users, err = newUsers(filepath.Join(a.dir, "users.acl"), config.Password); err != nil {
				return err
			}
			opts = append(opts, a.users.option())
			if spaces != nil {
				config.Names = filepath.Join(a.dir, "names")
			}
		}
		if a.masters, err = redlocktest.Run(servers, append(opts, where, redlocktest.WithPassword(config.Password))...); err != nil {
			return err
		}
		if a.places, err = newPlaces(a.masters, masterCount, config.Names); err != nil {
			return err
		}
		a.traffic = links{a.masters, a.places}
		if spaces != nil {
			a.traffic, spaces.control, spaces.places = spaces, a.masters, a.places
		}
		config.Masters = a.places.Addrs()
		for i := range a.places.N() {
			info, err := a.places.Do(i, "INFO")
			if err != nil {
				return err
			}
			config.Runs = append(config.Runs, identity(info.(string)))
			direct, err := a.places.direct(i, spaces != nil)
			if err != nil {
				return err
			}
			config.Direct = append(config.Direct, direct)
		}
		return nil
	})
}

// newRoamingArena makes an arena with so many roaming masters.
func newRoamingArena(of string, masters int, locks []lockable, config clientConfig, unfenced bool) (*arena, error) {
	a := &arena{locks: locks}
	return a.begun(config, unfenced, func(config *clientConfig) (err error) {
		config.Password = rand.Text()
		if a.roaming, err = newRoaming(of, masters, config.Password); err != nil {
			return err
		}
		a.traffic = a.roaming
		config.Masters, config.Prefix = a.roaming.Addrs(), roamingPrefix
		return nil
	})
}

// begun makes all that an arena has beside its masters, which start makes.
func (a *arena) begun(config clientConfig, unfenced bool, start func(*clientConfig) error) (_ *arena, err error) {
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.group, err = processes.NewGroup("redburst-chaos"); err != nil {
		return nil, err
	}
	a.dir = a.group.Dir
	if err := start(&config); err != nil {
		return nil, err
	}
	a.counters = make(map[string]fileCounter)
	for _, key := range keysOf(a.locks) {
		if a.counters[key], err = newFileCounter(filepath.Join(a.dir, key)); err != nil {
			return nil, err
		}
	}
	a.resource = newResource(unfenced)
	config.Locks, config.Dir = a.locks, a.dir
	a.fleet = &fleet{config: config, dir: a.dir, resource: a.resource}
	if a.spaces != nil {
		a.fleet.places = a.spaces.clients
	}
	return a, nil
}

// voters are its masters, whatever they are.
func (a *arena) voters() voters {
	if a.roaming != nil {
		return a.roaming
	}
	return a.places
}

// keep has the files outlive the arena, which needs them no more, and returns where they are.
func (a *arena) keep() (dir string) {
	dir = a.dir + "-kept"
	if err := os.Rename(a.dir, dir); err != nil {
		panic(err)
	}
	return dir
}

// close ends all that is left, and removes the files that are not kept.
func (a *arena) close() {
	if a.fleet != nil {
		a.fleet.close()
	}
	if a.resource != nil {
		a.resource.close()
	}
	if a.masters != nil {
		a.masters.Close()
	}
	if a.roaming != nil {
		a.roaming.Close()
	}
	if a.spaces != nil {
		a.spaces.network.Close()
	}
	if a.group != nil {
		a.group.Close()
	}
}

// judge has the checker look at what the clients have left. All must be gone.
func (a *arena) judge(t trial) (finding, error) {
	var err error
	if t.Logs, err = a.fleet.logs(); err != nil {
		return finding{}, err
	}
	t.Locks, t.Counters = a.locks, make(map[string]int)
	for key, c := range a.counters {
		if t.Counters[key], err = c.read(); err != nil {
			return finding{}, err
		}
	}
	t.Arrivals, t.Counts = a.resource.result()
	return check(t), nil
}

// lasts are the names of keys that outlive the locks. A client that was killed leaves its
// entries in queues.
var lasts = regexp.MustCompile(`:fence$|:permits$|:writer$|:line$|:line:|:since$`)

// keysLeft returns the keys that are still there after the longest TTL. It is
// counted from when the masters have served all that the clients have sent. The
// counters of the fences, the marks of permits, what writers have asked of readers
// and the lines remain, but not for ever. A witness does.
func (a *arena) keysLeft(ctx context.Context, longest time.Duration) (left []string, err error) {
	masters := a.voters()
	for i := range masters.N() {
		a.traffic.end(i)
		for {
			list, err := masters.Do(i, "CLIENT", "LIST")
			if err != nil {
				return nil, err
			}
			clients := strings.Count(list.(string), "\n") - 1 // without us
			if a.roaming != nil {                             // there are replicas, and others
				clients = strings.Count(list.(string), " name="+clientName)
			}
			if clients == 0 {
				break
			}
			if !sleep(ctx, time.Millisecond) {
				return nil, errInterrupted
			}
		}
	}
	if !sleep(ctx, longest+longest/100+10*time.Millisecond) { // the masters' clocks may be slow, and they count in milliseconds
		return nil, errInterrupted
	}
	for i := range masters.N() {
		keys, err := masters.Do(i, "KEYS", "*")
		if err != nil {
			return left, err
		}
		for _, key := range keys.([]any) {
			if name := key.(string); lasts.MatchString(name) {
				ttl, err := masters.Do(i, "PTTL", name)
				if err != nil {
					return left, err
				}
				if ttl != int64(-1) || strings.HasSuffix(name, ":since") {
					continue
				}
			}
			left = append(left, fmt.Sprintf("master %d still has the key %v, after the longest TTL", i, key))
		}
	}
	return left, nil
}
