package deploy_test

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A session is a connection to a master on which commands are answered.
type session struct {
	net.Conn
	answers *bufio.Reader
}

func connect(t *testing.T, port int) *session {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(2 * deadline))
	return &session{c, bufio.NewReader(c)}
}

// say sends a line and returns the line of the answer, or why there is none.
func (s *session) say(line string) string {
	if _, err := s.Write([]byte(line + "\r\n")); err != nil {
		return "no answer: " + err.Error()
	}
	answer, err := s.answers.ReadString('\n')
	if err != nil {
		return "no answer: " + err.Error()
	}
	return strings.TrimSpace(answer)
}

// each has connections send the same at once, until all of it is sent or they are cut.
func each(t *testing.T, port, n int, send func(*session)) {
	var sending sync.WaitGroup
	turns := make(chan struct{}, 50)
	for range n {
		s := connect(t, port)
		turns <- struct{}{}
		sending.Go(func() {
			defer func() { <-turns }()
			send(s)
		})
	}
	sending.Wait()
}

// Whatever others send, and never end, those who use locks go on.
func TestNobodyFillsAMastersMemory(t *testing.T) {
	megabyte := strings.Repeat("x", 1<<20)
	piece := "$500000\r\n" + strings.Repeat("x", 500000) + "\r\n"
	pieces := "*10\r\n" + strings.Repeat("$16384\r\n"+strings.Repeat("x", 16384)+"\r\n", 9)
	many := func(s *session, text string, n int) {
		for range n {
			if _, err := s.Write([]byte(text)); err != nil {
				return // it was cut
			}
		}
	}
	probe := login(t, "probe")
	for _, attack := range []struct {
		name    string
		knows   bool // a password
		connect int
		send    func(*session)
	}{
		{"arguments that do not end", true, 2, func(s *session) {
			s.say(probe)
			many(s, "*2\r\n$4\r\nPING\r\n$536870912\r\n", 1)
			many(s, megabyte, 200)
		}},
		{"arguments that are many", true, 1, func(s *session) {
			s.say(probe)
			many(s, "*1000000\r\n", 1)
			many(s, piece, 700)
		}},
		{"connections that are many", false, 2000, func(s *session) { many(s, pieces, 1) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			if attack.knows && !limited(t) {
				t.Skip("Redis 6 knows no maxmemory-clients, as the README says")
			}
			port := deploy(t, nil).ports[0]
			user := connect(t, port)
			require.Equal(t, "+OK", user.say(login(t, "locker")))
			set := func(key string) string { return user.say("SET lock:" + key + " t PX 60000") }
			require.Equal(t, "+OK", set("before"))

			attacked, refused := make(chan struct{}), make(chan string, 1)
			go func() {
				defer close(refused)
				for n := 0; ; n++ {
					if answer := set(strconv.Itoa(n)); answer != "+OK" {
						refused <- answer
						return
					}
					select {
					case <-attacked:
						return
					case <-time.After(time.Millisecond):
					}
				}
			}()
			each(t, port, attack.connect, attack.send)
			close(attacked)
			require.Empty(t, <-refused, "while it lasts")
			require.Equal(t, "+OK", set("after"))
			if limited(t) { // before, those who are connected are not cut
				require.Equal(t, "+OK", talk(port, login(t, "locker"), "SET lock:new t PX 60000"))
			}
		})
	}
}
