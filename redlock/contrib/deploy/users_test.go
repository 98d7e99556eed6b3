package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// as runs the command line as a user.
func (d *deployment) as(t *testing.T, user string, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), commandLine(t), slices.Insert(slices.Clone(args), 1, "--password-file", passwordFile(t, user))...)
	cmd.Env = append(os.Environ(), "REDLOCK_USERNAME="+user, "REDLOCK_DURABLE=true", "REDLOCK_MASTERS="+strings.Join(d.addrs, ","))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestTheOperatorMayLookAndTheAdministratorMayChange(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	port := d.ports[0]
	looks := []string{"SCAN 0", "CLIENT LIST", "PING"}
	changes := []string{"CONFIG SET maxmemory 200mb", "CONFIG GET dir", "ACL LIST", "ACL SETUSER locker -info", "ACL LOAD", "SET other b"}
	for _, command := range looks {
		for _, user := range []string{"operator", "admin"} {
			require.NotRegexp(t, "^-", talk(port, login(t, user), command), user)
		}
	}
	for _, command := range []string{"SCAN 0", "CLIENT LIST"} {
		require.Contains(t, talk(port, login(t, "locker"), command), "-NOPERM", command)
	}
	for _, command := range changes {
		require.Contains(t, talk(port, login(t, "operator"), command), "-NOPERM", command)
		require.NotRegexp(t, "^-", talk(port, login(t, "admin"), command), command)
	}
	for _, command := range []string{"FLUSHALL", "SHUTDOWN", "KEYS *", "CLIENT KILL TYPE normal", "REPLICAOF NO ONE"} {
		require.Contains(t, talk(port, login(t, "operator"), command), "-NOPERM", command)
	}

	out, err := d.as(t, "operator", "clients")
	require.NoError(t, err, out)
	out, err = d.as(t, "locker", "clients")
	require.Error(t, err)
	require.Contains(t, out, "+client|list")
	for _, args := range [][]string{{"run", "lock:a", "--", "true"}, {"run", "--shared", "lock:a", "--", "true"}, {"fence", "lock:a"}} {
		out, err = d.as(t, "operator", args...)
		require.NoError(t, err, out)
	}
}

// While a password is changed, locks are held on, and clients with the old one and with the new one get in.
func TestAPasswordIsChangedUnderALock(t *testing.T) {
	t.Parallel()
	d := deploy(t, nil)
	old := password(t, "locker")
	passwords := make(chan string, 1)
	passwords <- old
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: d.addrs, DialTimeout: deadline, RoundTimeout: deadline,
		Credentials: func(context.Context, string) (redlock.Credentials, error) {
			now := <-passwords
			passwords <- now
			return redlock.Credentials{Username: "locker", Password: redlock.NewSecret(now)}, nil
		}})
	require.NoError(t, err)
	defer client.Close()
	m := client.NewMutex("lock:a", time.Minute)
	require.NoError(t, m.Lock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()

	load := func() {
		for i, port := range d.ports {
			require.Equal(t, "+OK", talk(port, login(t, "admin"), "ACL LOAD"))
			require.Eventually(t, func() bool { // it may have been cut off
				return m.Extend(t.Context()) == nil && client.Stats().Masters[i].Phase == "up"
			}, deadline, 5*time.Millisecond)
		}
	}
	gets := func(password string) string { return talk(d.ports[0], "AUTH locker "+password) }
	shell(t, d.dir, block(t, "locker.new\n  hash"))
	now := strings.TrimSpace(read(t, filepath.Join(d.dir, "locker.new")))
	require.Contains(t, gets(now), "-WRONGPASS", "the master has not read it")
	load()
	require.Equal(t, "+OK", gets(old))
	require.Equal(t, "+OK", gets(now))
	<-passwords
	passwords <- now

	shell(t, d.dir, block(t, "mv locker.new locker.password"))
	require.Equal(t, now, strings.TrimSpace(read(t, filepath.Join(d.dir, "locker.password"))))
	load()
	require.Contains(t, gets(old), "-WRONGPASS")
	require.Equal(t, "+OK", gets(now))
	require.NoError(t, held.Err())
	require.NoError(t, m.Unlock(t.Context()))

	// A file with a fault changes nothing.
	users := filepath.Join(d.dir, "users.acl")
	require.NoError(t, os.WriteFile(users, []byte(read(t, users)+"user broken +nonsense\n"), 0o600))
	require.Regexp(t, "^-", talk(d.ports[0], login(t, "admin"), "ACL LOAD"))
	require.Equal(t, "+OK", gets(now))
}
