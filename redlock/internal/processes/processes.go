// Package processes runs processes that do not outlive this one, such as redis-servers.
package processes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// RedisServer returns the path of the server that REDLOCKTEST_SERVER names. It may be a script that ends
// with exec: the process is then the server's. Without the variable it finds redis-server, or
// valkey-server which some systems have in its place.
func RedisServer() (string, error) {
	if name := os.Getenv("REDLOCKTEST_SERVER"); name != "" {
		bin, err := exec.LookPath(name)
		if err != nil {
			return "", fmt.Errorf("REDLOCKTEST_SERVER: %w", err)
		}
		return bin, nil
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin, nil
		}
	}
	return "", errors.New("no redis-server on the PATH: install it (apt-get install redis-server, " +
		"brew install redis, dnf install redis)")
}
