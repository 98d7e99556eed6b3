//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
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
	for i := range r.N() {
		_, err := r.Do(i, command...)
		require.NoError(r.t, err)
	}
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
	token, err := r.Do(i, "GET", "k")
	require.NoError(r.t, err)
	return token
}

// cut ends all connections, and waits for new ones, and that they have renewed the lock.
func (r *rotation) cut() {
	r.t.Helper()
	r.all("CLIENT", "KILL", "USER", user)
	for i := range r.N() {
		awaitTrue(r.t, func() bool {
			list, err := r.Do(i, "CLIENT", "LIST")
			require.NoError(r.t, err)
			return strings.Contains(list.(string), "user="+user) && strings.Contains(list.(string), "/redlock-")
		})
		_, err := r.Do(i, "PEXPIRE", "k", "4000")
		require.NoError(r.t, err)
		awaitTrue(r.t, func() bool {
			left, err := r.Do(i, "PTTL", "k")
			require.NoError(r.t, err)
			return left.(int64) > 4000
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
			file := filepath.Join(t.TempDir(), "password")
			put(t, file, "old\n")
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

// The file changes in the moment in which the connections end.
func TestANewPasswordIsTakenAtTheNextConnect(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	file := filepath.Join(t.TempDir(), "password")
	put(t, file, "old\n")
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
						_, err := r.Do(i, "ACL", "SETUSER", user, ">"+own)
						require.NoError(t, err)
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
					_, err := r.Do(i, "ACL", "SETUSER", user, fmt.Sprint("<old", i))
					require.NoError(t, err)
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
	file := filepath.Join(t.TempDir(), "password")
	put(t, file, "old\n")
	r.holds([]string{mastersEnv(r.Masters), "REDLOCK_USERNAME=" + user}, "lead", "--password-file", file)
	put(t, file, "early\n")
	r.s.awaitStderr("refused the new password or certificate")
	r.cut()
	r.cut()
	r.once("refused the new password or certificate")
	for i := range r.N() { // one after the other
		_, err := r.Do(i, "ACL", "SETUSER", user, ">early", "<old")
		require.NoError(t, err)
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
	file := filepath.Join(t.TempDir(), "password")
	put(t, file, "old\n")
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
		_, err = r.Do(i, "CONFIG", "SET", "tls-port", port)
		require.NoError(r.t, err)
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
	write(bundle(two), two)
	r.awaitTaken()
	r.cut()
	r.ends()
}
