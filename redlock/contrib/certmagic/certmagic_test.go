package certmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redburst/redburst/redlock"
	redcertmagic "github.com/redburst/redburst/redlock/contrib/certmagic"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const (
	ttl      = 1500 * time.Millisecond // a busy machine renews late
	deadline = 30 * time.Second
)

// files is a storage whose own locks nobody may use.
type files struct{ *certmagic.FileStorage }

var errNotOurs = errors.New("the storage's own lock was used")

func (files) Lock(context.Context, string) error            { return errNotOurs }
func (files) TryLock(context.Context, string) (bool, error) { return false, errNotOurs }
func (files) Unlock(context.Context, string) error          { return errNotOurs }

// process returns a storage as another process has it: with a client of its own, and the same files.
func process(t *testing.T, masters *redlocktest.Masters, dir string) *redcertmagic.Storage {
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: deadline, RoundTimeout: deadline})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return redcertmagic.WithLocks(files{&certmagic.FileStorage{Path: dir}}, client, "lock:", ttl)
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// forget takes the locks away, as a failover that loses them does.
func forget(masters *redlocktest.Masters) {
	for i := range masters.N() {
		masters.Flush(i)
	}
}

// An authority signs whatever it is asked for.
type authority struct {
	key   *ecdsa.PrivateKey
	cert  *x509.Certificate
	asked atomic.Int64
	issue func() // called before it signs
}

func newAuthority(t *testing.T, issue func()) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
	return &authority{key: key, cert: cert, issue: issue}
}

func (a *authority) IssuerKey() string { return "authority" }

func (a *authority) Issue(_ context.Context, request *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	n := a.asked.Add(1)
	a.issue()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1 + n), DNSNames: request.DNSNames,
		NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter}, a.cert, request.PublicKey, a.key)
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

func manager(t *testing.T, storage certmagic.Storage, issuer certmagic.Issuer) *certmagic.Config {
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
	})
	t.Cleanup(cache.Stop)
	config = certmagic.New(cache, certmagic.Config{Storage: storage, Issuers: []certmagic.Issuer{issuer},
		OCSP: certmagic.OCSPConfig{DisableStapling: true}})
	return config
}

// certmagic logs a storage by its String, and all exported fields of one that has none.
func TestALogShowsNoFieldsOfTheStorage(t *testing.T) {
	t.Parallel()
	text := func(storage certmagic.Storage) string {
		var s fmt.Stringer = redcertmagic.WithLocks(storage, nil, "lock:", ttl)
		return s.String()
	}
	type database struct {
		certmagic.Storage
		Password string
	}
	require.Equal(t, "certmagic_test.database", text(database{Password: "secret"}))
	require.Equal(t, "FileStorage:/certs", text(files{&certmagic.FileStorage{Path: "/certs"}}))
}

func TestOneProcessObtainsACertificate(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	dir := t.TempDir()
	first, second := process(t, masters, dir), process(t, masters, dir)
	busy, done := make(chan struct{}), make(chan struct{})
	issuer := newAuthority(t, func() {
		close(busy) // panics if two are issued
		<-done
	})
	both := make(chan error, 2)
	go func() { both <- manager(t, first, issuer).ObtainCertSync(t.Context(), "example.com") }()
	<-busy
	go func() { both <- manager(t, second, issuer).ObtainCertSync(t.Context(), "example.com") }()
	for begun := time.Now(); time.Since(begun) < 2*ttl; time.Sleep(ttl / 10) { // it takes longer than the TTL
		free, err := second.TryLock(t.Context(), "issue_cert_example.com")
		require.NoError(t, err)
		require.False(t, free)
	}
	close(done)
	require.NoError(t, <-both)
	require.NoError(t, <-both)
	require.EqualValues(t, 1, issuer.asked.Load())
	free, err := second.TryLock(t.Context(), "issue_cert_example.com")
	require.NoError(t, err)
	require.True(t, free, "it is unlocked")
}

func TestLocksExcludeWithinAProcessToo(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := process(t, masters, t.TempDir())
	inside := new(atomic.Int64)
	all := make(chan error, 8)
	for range cap(all) {
		go func() {
			err := s.Lock(within(t, deadline), "name")
			if err == nil && inside.Add(1) > 1 {
				err = errors.New("two hold it")
			}
			inside.Add(-1)
			all <- errors.Join(err, s.Unlock(t.Context(), "name"))
		}()
	}
	for range cap(all) {
		require.NoError(t, <-all)
	}
	require.Error(t, s.Unlock(t.Context(), "name"))
	require.ErrorContains(t, s.RenewLockLease(t.Context(), "name", time.Minute), "not locked here")
}

func TestLockWaitsForTheContext(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s, other := process(t, masters, t.TempDir()), process(t, masters, t.TempDir())
	require.NoError(t, s.Lock(t.Context(), "name"))
	require.ErrorIs(t, s.Lock(within(t, ttl/10), "name"), context.DeadlineExceeded, "in this process")
	require.ErrorIs(t, other.Lock(within(t, ttl/10), "name"), context.DeadlineExceeded)
	free, err := s.TryLock(t.Context(), "name")
	require.NoError(t, err)
	require.False(t, free)
	require.NoError(t, other.Lock(within(t, deadline), "another"))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Unlock(gone, "name"), "whatever becomes of the context")
	require.NoError(t, other.Lock(within(t, deadline), "name"))
}

func TestTheLockOutlivesTheContextOfLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s, other := process(t, masters, t.TempDir()), process(t, masters, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, s.Lock(ctx, "name"))
	cancel()
	require.ErrorIs(t, other.Lock(within(t, 2*ttl), "name"), context.DeadlineExceeded)
	require.NoError(t, s.Unlock(t.Context(), "name"))
}

func TestALockOfADeadProcessEnds(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: deadline, RoundTimeout: deadline})
	require.NoError(t, err)
	require.NoError(t, client.NewMutex("lock:name", ttl).TryLock(t.Context()))
	require.NoError(t, client.Close()) // which releases nothing
	require.NoError(t, process(t, masters, t.TempDir()).Lock(within(t, deadline), "name"))
}

func TestALostLock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s, other := process(t, masters, t.TempDir()), process(t, masters, t.TempDir())
	require.NoError(t, s.Lock(t.Context(), "name"))
	require.NoError(t, s.RenewLockLease(t.Context(), "name", time.Minute))
	forget(masters)
	require.NoError(t, other.Lock(within(t, deadline), "name"))
	var err error
	require.Eventually(t, func() bool {
		err = s.RenewLockLease(t.Context(), "name", time.Minute)
		return err != nil
	}, deadline, 5*time.Millisecond)
	require.ErrorIs(t, err, redlock.ErrLost)
	require.ErrorIs(t, err, redlock.ErrHeld, "by the other one")
	require.ErrorIs(t, s.Lock(within(t, ttl/10), "name"), context.DeadlineExceeded, "its holder here has not ended yet")

	require.NoError(t, other.Unlock(t.Context(), "name"))
	require.NoError(t, s.RenewLockLease(t.Context(), "name", time.Minute), "it is taken again")
	require.ErrorIs(t, other.Lock(within(t, 2*ttl), "name"), context.DeadlineExceeded, "and kept alive")
	require.NoError(t, s.Unlock(t.Context(), "name"))
	require.NoError(t, other.Lock(within(t, deadline), "name"))
}

// A lock that is unlocked while it is taken again stays with nobody.
func TestUnlockWhileALostLockIsTakenAgain(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: deadline, RoundTimeout: deadline, StallTime: deadline})
	require.NoError(t, err)
	defer client.Close()
	owed := func() int { s := client.Stats(); return behind.OfMaster(&s.Masters[0]).Owed }
	s, other := redcertmagic.WithLocks(nil, client, "lock:", ttl), client.NewMutex("lock:name", ttl)
	require.NoError(t, s.Lock(t.Context(), "name"))
	forget(masters)
	require.NoError(t, other.Lock(within(t, deadline)))
	require.Eventually(t, func() bool { return client.Stats().Lost == 1 }, deadline, 5*time.Millisecond)
	require.NoError(t, other.Unlock(t.Context()))
	masters.Pause(0)
	before, again, unlocked := owed(), make(chan error, 1), make(chan error, 1)
	go func() { again <- s.RenewLockLease(t.Context(), "name", time.Minute) }()
	require.Eventually(t, func() bool { return owed() > before }, deadline, 5*time.Millisecond)
	go func() { unlocked <- s.Unlock(t.Context(), "name") }()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Eventually(t, func() bool {
		return strings.Contains(s.RenewLockLease(gone, "name", time.Minute).Error(), "not locked here")
	}, deadline, 5*time.Millisecond)
	masters.Resume(0)
	require.ErrorContains(t, <-again, "not locked here")
	require.NoError(t, <-unlocked)
	require.NoError(t, other.TryLock(t.Context()))
}

func TestUnlockOfALostLockIsNoError(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	s := process(t, masters, t.TempDir())
	require.NoError(t, s.Lock(t.Context(), "name"))
	forget(masters)
	require.NoError(t, s.Unlock(t.Context(), "name"))
	require.NoError(t, s.Lock(within(t, deadline), "name"))
	for i := range masters.N() {
		masters.Kill(i)
	}
	require.NoError(t, s.Unlock(t.Context(), "name"))
	free, err := s.TryLock(t.Context(), "name")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.False(t, free)
}
