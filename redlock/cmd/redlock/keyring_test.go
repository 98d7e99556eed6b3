//go:build unix

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const user = "locker"

// A rotation is of the masters' passwords or certificates, while a command has the lock k.
type rotation struct {
	*redlocktest.Masters
	t     *testing.T
	s     *invocation
	token any
}

func newRotation(t *testing.T) *rotation {
	r := &rotation{Masters: redlocktest.Start(t, 3), t: t}
	r.all("ACL", "SETUSER", user, "on", ">old", "~*", "&*", "+@all")
	return r
}

func (r *rotation) all(command ...string) {
	r.t.Helper()
	onAll(r.t, r.Masters, command...)
}

// holds begins the command, which is to have the lock until the end.
func (r *rotation) holds(env []string, command string, flags ...string) {
	r.t.Helper()
	args := append([]string{command, "--ttl", "5s", "-v", atOnce}, flags...)
	switch args = append(args, "k"); command {
	case "run", "lead":
		args = append(args, "--", "sh", "-c", "echo ready; exec sleep 3600")
		r.s = begin(r.t, env, args...)
		r.s.awaitStdout("ready")
	case "hold":
		r.s = begin(r.t, env, args...)
		r.s.awaitStdout("REDLOCK_TOKEN")
	}
	for i := range r.N() {
		awaitTrue(r.t, func() bool { return r.locked(i) != nil })
	}
	r.token = r.locked(0)
}

func (r *rotation) locked(i int) any {
	r.t.Helper()
	return ask(r.t, r.Masters, i, "GET", "k")
}

// cut ends all connections, and waits for new ones, and that they have renewed the lock.
func (r *rotation) cut() {
	r.t.Helper()
	r.all("CLIENT", "KILL", "USER", user)
	for i := range r.N() {
		awaitTrue(r.t, func() bool {
			list := ask(r.t, r.Masters, i, "CLIENT", "LIST")
			return strings.Contains(list.(string), "user="+user) && strings.Contains(list.(string), "/redlock-")
		})
		ask(r.t, r.Masters, i, "PEXPIRE", "k", "4000")
		awaitTrue(r.t, func() bool {
			return ask(r.t, r.Masters, i, "PTTL", "k").(int64) > 4000
		})
		require.Equal(r.t, r.token, r.locked(i))
	}
}

// ends ends the command, which has the lock still.
func (r *rotation) ends() {
	r.t.Helper()
	for i := range r.N() {
		require.Equal(r.t, r.token, r.locked(i))
	}
	require.NoError(r.t, r.s.Process.Signal(syscall.SIGTERM))
	r.s.end()
	require.NotContains(r.t, r.s.err.String(), "lost")
	for i := range r.N() {
		require.Nil(r.t, r.locked(i))
	}
}

// once demands that the command has said a text, and has not said it again.
func (r *rotation) once(text string) {
	r.t.Helper()
	require.Equal(r.t, 1, strings.Count(r.s.err.String(), text), r.s.err.String())
}

func (r *rotation) awaitTaken() {
	r.t.Helper()
	awaitTrue(r.t, func() bool { return strings.Count(r.s.err.String(), "takes the new password") == r.N() })
}

func put(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func replaceFile(t *testing.T, file, text string) {
	t.Helper()
	put(t, file+".new", text)
	require.NoError(t, os.Rename(file+".new", file))
}

// The file with the password changes, and with it the masters. A command takes the new one by itself, and keeps its lock.
func TestANewPasswordIsTaken(t *testing.T) {
	t.Parallel()
	for command, change := range map[string]func(t *testing.T, file string, s *invocation){
		"run":  func(t *testing.T, file string, _ *invocation) { replaceFile(t, file, "new\n") },
		"lead": func(t *testing.T, file string, _ *invocation) { put(t, file, "new") },
		"hold": func(t *testing.T, file string, s *invocation) { // half written for long
			put(t, file, "")
			s.awaitStderr(file + " is empty")
			put(t, file, "ne")
			s.awaitStderr("refused the new password")
			put(t, file, "new")
		},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			r := newRotation(t)
			file := oldPassword(t)
			r.holds([]string{mastersEnv(r.Masters), "REDLOCK_USERNAME=" + user}, command, "--password-file", file)
			r.all("ACL", "SETUSER", user, ">new")
			change(t, file, r.s)
			r.awaitTaken()
			r.all("ACL", "SETUSER", user, "<old")
			r.cut()
			r.ends()
		})
	}
}

// oldPassword is a file with it.
func oldPassword(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "password")
	put(t, file, "old\n")
	return file
}

// The file changes in the moment in which the connections end.
func TestANewPasswordIsTakenAtTheNextConnect(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	file := oldPassword(t)
	r.holds([]string{mastersEnv(r.Masters), "REDLOCK_USERNAME=" + user}, "lead", "--password-file", file, "--dial-timeout", "20s")
	r.all("ACL", "SETUSER", user, ">new", "<old")
	put(t, file, "new\n")
	r.cut()
	require.NotContains(t, r.s.err.String(), "WRONGPASS")
	r.ends()
}

// Each master has a password of its own, in the file with the list. A SIGHUP has it read, and it is read without.
func TestNewPasswordsOfAListAreTaken(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "lead", "hold"} {
		for _, hangup := range []bool{false, true} {
			t.Run(fmt.Sprint(command, hangup), func(t *testing.T) {
				t.Parallel()
				r := newRotation(t)
				list := func(password string) (all []string) {
					for i, a := range r.Addrs() {
						own := fmt.Sprint(password, i)
						ask(t, r.Masters, i, "ACL", "SETUSER", user, ">"+own)
						all = append(all, "redis://"+user+":"+own+"@"+a)
					}
					return all
				}
				f := newMasterFile(t, list("old")...)
				r.holds(f.env(), command)
				f.write(list("new")...)
				if hangup {
					f.hangup("the list of masters is the same", r.s)
					require.Equal(t, 3, strings.Count(r.s.err.String(), "takes the new password"))
				}
				r.awaitTaken()
				for i := range r.N() {
					ask(t, r.Masters, i, "ACL", "SETUSER", user, fmt.Sprint("<old", i))
				}
				r.cut()
				r.ends()
			})
		}
	}
}

// A password that the masters refuse, or have not got yet, changes nothing. It is taken when they have got it.
func TestARefusedPasswordChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	file := oldPassword(t)
	r.holds([]string{mastersEnv(r.Masters), "REDLOCK_USERNAME=" + user}, "lead", "--password-file", file)
	put(t, file, "early\n")
	r.s.awaitStderr("refused the new password or certificate")
	r.cut()
	r.cut()
	r.once("refused the new password or certificate")
	for i := range r.N() { // one after the other
		ask(t, r.Masters, i, "ACL", "SETUSER", user, ">early", "<old")
		r.cut()
	}
	r.once("refused the new password or certificate")
	require.NotContains(t, r.s.err.String(), "early")
	r.ends()
}

// What cannot be read changes nothing, and is said once.
func TestAnUnreadablePasswordChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	file := oldPassword(t)
	r.holds([]string{mastersEnv(r.Masters), "REDLOCK_USERNAME=" + user}, "run", "--password-file", file)
	require.NoError(t, os.Remove(file))
	r.s.awaitStderr("no such file")
	r.cut()
	r.once("no such file")
	require.NoError(t, syscall.Mkfifo(file, 0o600)) // whose reader would wait for ever
	r.s.awaitStderr("is no regular file now")
	r.cut()
	r.once("is no regular file now")
	require.NoError(t, os.Remove(file))
	put(t, file, strings.Repeat("x", maxText+1))
	r.s.awaitStderr("is longer than")
	r.cut()
	r.once("is longer than")
	r.all("ACL", "SETUSER", user, ">new")
	replaceFile(t, file, "new\n")
	r.awaitTaken()
	r.all("ACL", "SETUSER", user, "<old")
	r.cut()
	r.ends()
}

// A password that comes through a pipe can be read once, and is kept.
func TestAPasswordFromAPipeIsKept(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	go os.WriteFile(pipe, []byte("old\n"), 0o600)
	f := newMasterFile(t, r.Addrs()...)
	r.holds(append(f.env(), "REDLOCK_USERNAME="+user), "lead", "--password-file", pipe)
	f.hangup("the list of masters is the same", r.s)
	r.cut()
	r.ends()
}

// flagsWith are flags with a file of a password. Nobody listens at the master.
func flagsWith(t *testing.T, file string) *mastersFlags {
	t.Helper()
	f := new(mastersFlags)
	cmd := &cobra.Command{}
	f.register(cmd)
	require.NoError(t, cmd.ParseFlags([]string{"-m", "127.0.0.1:1", "--password-file", file}))
	return f
}

func awaitWithin(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patient):
		require.FailNow(t, what)
	}
}

// A pipe that comes in the place of a file, in whatever moment, does not hold up who reads it.
func TestAPipeInAFilesPlaceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	put(t, file, "old\n")
	f := flagsWith(t, file)
	f.frozen = true
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, other := range []string{pipe, dir, os.DevNull} {
		_, err := f.text(other)
		require.ErrorContains(t, err, "is no regular file now")
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for range 30000 {
			if text, err := f.text(file); err == nil && text != "old\n" {
				t.Errorf("read %q", text)
			}
		}
	}()
	regular, next := filepath.Join(dir, "regular"), filepath.Join(dir, "next")
	put(t, regular, "old\n")
	for began := time.Now(); time.Since(began) < patient; {
		select {
		case <-read:
			return
		default:
		}
		for _, other := range []string{pipe, regular} {
			require.NoError(t, os.Link(other, next))
			require.NoError(t, os.Rename(next, file))
		}
	}
	require.FailNow(t, "a read waits for a pipe")
}

// awaitPassword waits until the keyring has a password.
func awaitPassword(t *testing.T, k *keyring, want string) {
	t.Helper()
	awaitTrue(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.latest.connect.Password.Reveal() == want
	})
}

// A file is gone as the keyring begins. What it has when it comes back is taken. One that changes between the start and the
// keyring's first look is taken without another change.
func TestAFileThatIsGoneAtTheStartIsFollowed(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{true, false} {
		file := oldPassword(t)
		f := flagsWith(t, file)
		set, err := f.masterSet()
		require.NoError(t, err)
		if gone {
			require.NoError(t, os.Remove(file))
		} else {
			put(t, file, "new\n")
		}
		k := newKeyring(f, set)
		require.NotNil(t, k)
		defer k.end()
		if gone {
			put(t, file, "new\n")
		}
		awaitPassword(t, k, "new")
	}
}

// What is in a file is judged when it was the same at two looks in a row: before that, somebody may be writing it. So it is each time.
func TestAFileIsJudgedWhenNobodyWritesIt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	put(t, file, "old\n")
	f := flagsWith(t, file)
	set, err := f.masterSet()
	require.NoError(t, err)
	f.frozen = true
	k := &keyring{given: *f, names: []string{file}, latest: set}
	used := "old"
	for _, next := range []string{"new", "newest"} {
		for _, text := range []string{"n", "ne", "", next} {
			put(t, file, text)
			k.lookAgain()
			require.Equal(t, used, k.latest.connect.Password.Reveal())
		}
		used = next
		k.lookAgain()
		require.Equal(t, used, k.latest.connect.Password.Reveal())
	}
}

// hungKeyring is one whose reader hangs.
func hungKeyring(t *testing.T) *keyring {
	k := &keyring{looks: make(chan look), note: func(string, ...any) {}}
	k.ctx, k.end = context.WithCancel(t.Context())
	t.Cleanup(k.end)
	return k
}

// A SIGHUP before the masters are connected does not make the start wait for files that hang.
func TestAHangupBeforeTheStartHoldsNothingUp(t *testing.T) {
	t.Parallel()
	for _, follows := range []bool{true, false} {
		r := &acquirer{keyring: hungKeyring(t), reader: reader{follows: follows}}
		require.Equal(t, follows, r.rereads(syscall.SIGHUP))
		awaitTrue(t, func() bool {
			select {
			case <-r.keyring.looks: // and hangs
				return true
			default:
			}
			r.reader.mu.Lock()
			defer r.reader.mu.Unlock()
			return r.reader.missed
		})
		opened := make(chan struct{})
		go func() {
			r.opened(new(redlock.Client))
			close(opened)
		}()
		awaitWithin(t, opened, "the start waits")
	}
}

// SIGHUPs that come while the files hang are one at the end.
func TestHangupsDoNotPileUp(t *testing.T) {
	t.Parallel()
	for _, follows := range []bool{true, false} {
		r := &acquirer{keyring: hungKeyring(t), reader: reader{follows: follows, client: new(redlock.Client)}}
		if follows {
			r.given = *flagsWith(t, "")
			r.masterSet.masters = []string{"127.0.0.1:1"}
		}
		r.rereads(syscall.SIGHUP)
		first := conntest.Soon(t, "the first look", r.keyring.looks)
		for range 1000 {
			r.rereads(syscall.SIGHUP)
		}
		buf := make([]byte, 16<<20)
		require.LessOrEqual(t, strings.Count(string(buf[:runtime.Stack(buf, true)]), fmt.Sprintf("(*acquirer).reread(%p", r)), 2)
		first.done <- true
		conntest.Soon(t, "a look at what has changed meanwhile", r.keyring.looks).done <- true
		r.reader.mu.Lock() // nobody else has it, or comes for it
		select {
		case <-r.keyring.looks:
			require.FailNow(t, "a third look")
		default:
		}
		r.reader.mu.Unlock()
	}
}

// A master that was replaced is forgotten, and so is one that could not take its place.
func TestTheKeyringForgetsReplacedMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	file := filepath.Join(t.TempDir(), "masters")
	write := func(which ...int) {
		var all []string
		for _, i := range which {
			all = append(all, masters.Addr(i))
		}
		put(t, file, strings.Join(all, "\n"))
	}
	write(0, 1, 2)
	f := new(mastersFlags)
	cmd := &cobra.Command{}
	f.register(cmd)
	require.NoError(t, cmd.ParseFlags([]string{"--masters-file", file}))
	r := &acquirer{given: *f, reader: reader{follows: true}}
	set, err := r.given.masterSet()
	require.NoError(t, err)
	r.masterSet, r.keyring = set, newKeyring(&r.given, set)
	defer r.keyring.end()
	r.connect.Credentials = r.keyring.credentials
	client, err := redlock.Open(t.Context(), r.clientConfig("test"))
	require.NoError(t, err)
	defer client.Close()
	r.reader.client = client
	taken := func() []string {
		r.keyring.mu.Lock()
		defer r.keyring.mu.Unlock()
		return slices.Sorted(maps.Keys(r.keyring.taken))
	}
	has := func(which ...int) {
		t.Helper()
		var all []string
		for _, i := range which {
			all = append(all, masters.Addr(i))
		}
		slices.Sort(all)
		require.Equal(t, all, taken())
	}
	write(0, 1, 3) // 2 still answers
	r.reread()
	has(0, 1, 2)
	masters.Kill(2)
	r.reread()
	has(0, 1, 3)
	masters.Kill(3)
	write(0, 1, 4)
	r.reread()
	has(0, 1, 4)
}

// An authority signs certificates for 127.0.0.1.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T, name string) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	c, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t, c, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// issue returns a certificate and its key.
func (a *authority) issue() (cert, key string) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, k.Public(), a.key)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(a.t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// serve has all masters show a certificate of an authority, and trust clients that some have signed.
func (r *rotation) serve(by *authority, trusted ...*authority) {
	r.t.Helper()
	dir := r.t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cert, key := by.issue()
	put(r.t, at("cert"), cert)
	put(r.t, at("key"), key)
	put(r.t, at("ca"), bundle(trusted...))
	r.all("CONFIG", "SET", "tls-cert-file", at("cert"), "tls-key-file", at("key"), "tls-ca-cert-file", at("ca"))
}

func bundle(all ...*authority) (text string) {
	for _, a := range all {
		text += a.pem
	}
	return text
}

// listen has all masters listen for TLS, too, and returns their addresses.
func (r *rotation) listen() string {
	r.t.Helper()
	var all []string
	for i := range r.N() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(r.t, err)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		l.Close()
		ask(r.t, r.Masters, i, "CONFIG", "SET", "tls-port", port)
		all = append(all, "127.0.0.1:"+port)
	}
	return strings.Join(all, ",")
}

// The masters and we get certificates of another authority, while a lock is held.
func TestNewCertificatesAreTaken(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	if _, err := r.Do(0, "CONFIG", "SET", "tls-session-caching", "no"); err != nil {
		t.Skip("redis-server has no TLS: ", err)
	}
	one, two, other := newAuthority(t, "one"), newAuthority(t, "two"), newAuthority(t, "other")
	r.serve(one, one, two)
	addresses := r.listen()
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	write := func(trusted string, by *authority) {
		c, k := by.issue()
		put(t, ca, trusted)
		replaceFile(t, cert, c)
		replaceFile(t, key, k)
	}
	write(bundle(one), one)
	r.holds([]string{"REDLOCK_MASTERS=" + addresses, "REDLOCK_USERNAME=" + user, "REDLOCK_PASSWORD=old"}, "lead", "--cacert", ca, "--cert", cert, "--key", key)

	write(bundle(one), other) // whom the masters do not trust
	r.s.awaitStderr("refused the new password or certificate")
	r.cut()
	r.once("refused the new password or certificate")
	r.s.err.clear()
	write(bundle(other), one) // we do not trust the masters
	r.s.awaitStderr("refused the new password or certificate")
	r.cut()
	r.once("refused the new password or certificate")
	r.s.err.clear()
	put(t, cert, "half")
	r.s.awaitStderr("--cert and --key")
	r.cut()
	r.once("--cert and --key")

	write(bundle(one, two), two)
	r.awaitTaken()
	r.serve(two, two)
	r.cut()
	r.s.err.clear()
	put(t, ca, bundle(two)) // and nothing else
	r.awaitTaken()
	r.cut()
	r.ends()
}
