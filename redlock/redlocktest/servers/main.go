// Servers runs the tests that talk to masters against every server that it finds or
// can get, and prints which passed against which.
//
//	go run ./redlock/redlocktest/servers
//	go run ./redlock/redlocktest/servers -brief
//	go run ./redlock/redlocktest/servers -only 'redis 8|valkey'
//	go run ./redlock/redlocktest/servers -fetch=false /opt/valkey-8.0/bin/valkey-server
//
// It takes the redis-server and valkey-server on the PATH, and those that are given.
// On Debian it also takes what other releases of Debian have, from the mirror that
// apt is configured for. Nothing is installed: the packages are unpacked into
// redburst/servers in the user's cache directory, beside the libraries that they
// need, and a script starts them with these. They are got once; -update looks for
// newer ones. A mirror that cannot be reached, or a package that cannot be had, is
// told, and the others are tested.
//
// The tests take the server from REDLOCKTEST_SERVER. To run one test against one
// server:
//
//	go run ./redlock/redlocktest/servers -list
//	REDLOCKTEST_SERVER=<a path from there> go test ./redlock -run TestName
//
// The exit status is 0 if all tests passed, 1 if not or if a server could not be had, and
// 2 if no test could be run. With -brief, the servers that can be had are enough.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	brief := flag.Bool("brief", false, "the core scenarios, against the oldest Redis and the newest of each kind, or those of -only")
	fetch := flag.Bool("fetch", true, "get servers from Debian")
	update := flag.Bool("update", false, "look for newer packages than those got before")
	only := flag.String("only", "", "a regular expression for the servers to take, such as 'redis 8|valkey'")
	list := flag.Bool("list", false, "print the servers and run nothing")
	flag.Parse()

	wanted, err := regexp.Compile(*only)
	if err != nil {
		complain(err)
		return 2
	}
	all, missing := find(ctx, flag.Args(), *fetch, *update)
	complain(missing)
	if *only != "" {
		all = slices.DeleteFunc(all, func(s server) bool { return !wanted.MatchString(s.String()) })
	} else if *brief {
		all = ends(all)
	}
	if len(all) == 0 {
		complain(errors.New("there is none"))
		return 2
	}
	status := 0
	if *list {
		for _, s := range all {
			fmt.Printf("%-14v %s\n", s, s.path)
		}
	} else {
		results, err := testAll(ctx, all, *brief)
		if err != nil {
			complain(err)
			return 2
		}
		matrix(os.Stdout, results)
		if slices.ContainsFunc(results, func(r result) bool { return len(r.failed) > 0 }) {
			status = 1
		}
		complain(missing) // again, where it is seen
	}
	if missing != nil && !*brief {
		status = 1
	}
	return status
}

func complain(err error) {
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(os.Stderr, "servers:", strings.TrimSpace(line))
	}
}

// find returns the servers, sorted. Its error tells of those that could not be had.
func find(ctx context.Context, given []string, fetch, update bool) ([]server, error) {
	paths := append(given, installed()...) // of two with the same version the first is taken
	c, err := cacheDir()
	if err == nil {
		if fetch {
			err = c.getAll(ctx, update)
		}
		paths = append(paths, c.servers()...)
	}
	var all []server
	for _, path := range paths {
		s, askErr := ask(ctx, path)
		if askErr != nil {
			err = errors.Join(err, askErr)
			continue
		}
		all = append(all, s)
	}
	return distinct(all), err
}
