package deploy_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The README's certificates, files and examination, for three masters on this machine.
func TestTLS(t *testing.T) {
	t.Parallel()
	if out, _ := exec.Command(server(t), "--port", "0", "--tls-auth-clients", "no", "--maxclients", "none").CombinedOutput(); strings.Contains(string(out), "tls-auth-clients") {
		t.Skip("this server was built without TLS")
	}
	here := withPasswords(t)
	certificates := t.TempDir()
	const addresses = ",IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3,IP:127.0.0.4"
	shell(t, certificates, strings.Replace(block(t, "openssl req -x509"), "DNS:$name", "DNS:$name"+addresses, 1))

	// What is installed on redis-a, and the passwords.
	root := t.TempDir()
	for line := range strings.Lines(block(t, "redis-a.key /etc/redlock/tls/master.key")) {
		if rest, ok := strings.CutPrefix(line, "install -D "); ok {
			words := strings.Fields(rest)
			from := filepath.Join(here, words[len(words)-2])
			if strings.HasSuffix(from, ".crt") || strings.HasSuffix(from, ".key") {
				from = filepath.Join(certificates, words[len(words)-2])
			}
			shell(t, root, "install -D -m 600 "+from+" "+root+words[len(words)-1])
		}
	}
	dir := filepath.Join(root, "etc/redlock")
	for name, text := range map[string]string{"redis.conf": read(t, "redis.conf"), "tls.conf": read(t, filepath.Join(dir, "tls.conf"))} {
		if !limited(t) {
			text = limitOfClients.ReplaceAllString(text, "")
		}
		text = strings.ReplaceAll(text, "/etc/redlock", dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	users := read(t, filepath.Join(here, "users.acl"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users.acl"), []byte(users), 0o600))

	pair, err := tls.LoadX509KeyPair(filepath.Join(certificates, "client.crt"), filepath.Join(certificates, "client.key"))
	require.NoError(t, err)
	dial := func(port int, config *tls.Config) string {
		config.InsecureSkipVerify = true // the doctor verifies
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", fmt.Sprintf("127.0.0.1:%d", port), config)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(deadline))
		answer := make([]byte, 100)
		c.Write([]byte("PING\r\n"))
		n, err := c.Read(answer)
		return fmt.Sprint(string(answer[:n]), err)
	}
	d := startMasters(t, dir, "tls.conf", func(port int) bool {
		return strings.Contains(dial(port, &tls.Config{Certificates: []tls.Certificate{pair}}), "-NOAUTH")
	})
	for _, port := range d.ports {
		require.NotContains(t, talk(port, "PING"), "NOAUTH", "it speaks TLS alone")
		require.Regexp(t, "certificate required|handshake failure", dial(port, &tls.Config{}))
		stranger, err := tls.X509KeyPair(selfSigned(t))
		require.NoError(t, err)
		require.Regexp(t, "remote error: tls: .*(certificate|authority)", dial(port, &tls.Config{Certificates: []tls.Certificate{stranger}}))
	}

	for i := range d.addrs {
		d.addrs[i] = "rediss://" + d.addrs[i]
	}
	doctor := doctorLine(t, "rediss://redis-a:6379")
	for i, word := range doctor {
		if strings.HasSuffix(word, ".crt") || strings.HasSuffix(word, ".key") {
			doctor[i] = filepath.Join(certificates, word)
		}
	}
	d.contents(t, doctor)
	for i := range d.addrs { // who has been given the wrong way in
		d.addrs[i] = strings.TrimPrefix(d.addrs[i], "rediss://")
	}
	out, status := d.redlockCommand(t, append(doctorLine(t, "redis-a:6379"), "--span", "10ms")...)
	require.Equal(t, 1, status)
	require.Contains(t, out, "it speaks TLS")
}

// selfSigned is a certificate that no authority has signed, and its key.
func selfSigned(t *testing.T) (certificate, key []byte) {
	dir := t.TempDir()
	shell(t, dir, "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=client -keyout key -out crt")
	return []byte(read(t, filepath.Join(dir, "crt"))), []byte(read(t, filepath.Join(dir, "key")))
}
