package conn_test

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redburst/redburst/conn/conntest"
)

// scripted is a server that gives each command the answer that script has for its longest
// prefix. The answer "" means none, and "close" closes the connection. The server keeps the
// commands.
type scripted struct {
	addr   string
	script map[string]string

	mu       sync.Mutex
	commands []string
}

// hello is a RESP3 server's answer to HELLO.
const hello = "%3\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"

// script starts a server whose answers override those of a plain master.
func script(tb testing.TB, answers map[string]string) *scripted {
	s := &scripted{script: map[string]string{
		"": "+OK\r\n", "HELLO": hello, "INFO": "$11\r\nrun_id:aa\r\n\r\n",
		"ROLE": "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
	}}
	for command, answer := range answers {
		s.script[command] = answer
	}
	s.addr = conntest.Listen(tb, s.serve)
	return s
}

func (s *scripted) serve(c net.Conn) {
	conntest.Answer(c, func(args []string) (string, bool) {
		command, best := strings.Join(args, " "), ""
		s.mu.Lock()
		defer s.mu.Unlock()
		s.commands = append(s.commands, command)
		for beginning := range s.script {
			if strings.HasPrefix(command, beginning) && len(beginning) > len(best) {
				best = beginning
			}
		}
		if s.script[best] == "close" {
			return "", false
		}
		return s.script[best], true
	})
}

func (s *scripted) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.commands...)
}

// saw reports whether it was sent a command that begins so.
func (s *scripted) saw(beginning string) bool {
	return slices.ContainsFunc(s.seen(), func(command string) bool { return strings.HasPrefix(command, beginning) })
}

// answer changes the answer to a command, and returns what it was.
func (s *scripted) answer(command, answer string) (before string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.script[command] = s.script[command], answer
	return before
}
