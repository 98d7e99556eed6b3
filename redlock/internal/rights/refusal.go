package rights

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/redburst/redburst/redlock/internal/script"
)

// Explain returns what the user lacks whom a master has refused something with NOPERM, for people; "" if nothing
// tells. text is the error, and sent are the commands that the master was sent. It answered the last one.
//
// Newer servers name a command that a script has called. Redis 6 and 7.0 name a line of the script instead, and the
// script is known. If a script has caught the error, Redis 7.0 names neither. Scripts that catch the
// error of anything but GET say what it was.
func Explain(text string, sent []byte) string {
	args := lastCommand(sent)
	if strings.Contains(text, "access") && strings.Contains(text, "key") {
		if strings.Contains(text, "script") { // it is about a key that the script has made up
			return ""
		}
		return keysText(args)
	}
	name := ""
	if m := named.FindStringSubmatch(text); m != nil {
		name = m[1]
	} else if strings.Contains(text, "can't run") {
		name = called(text, scriptOf(args))
	}
	if name == "" {
		return ""
	}
	var uses []string
	for _, n := range Uses(name) {
		uses = append(uses, n.For)
	}
	if len(uses) == 0 {
		return "the user lacks +" + name
	}
	return "the user lacks +" + name + ", which is for " + And(uses)
}

var (
	named   = regexp.MustCompile(`run the '([^' ]+)' command`)
	caught  = regexp.MustCompile(`\(([A-Z]+)\)$`)
	atLine  = regexp.MustCompile(`@user_script: ?(\d+)`)
	calls   = regexp.MustCompile(`redis\.call\('([A-Z]+)'`)
	catches = regexp.MustCompile(`redis\.pcall\('([A-Z]+)'`)
)

// called is the command that a script may not call, by an error that does not name it.
func called(text, script string) string {
	if m := caught.FindStringSubmatch(text); m != nil {
		return strings.ToLower(m[1])
	}
	all := atLine.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return "get"
	}
	lines := strings.Split(script, "\n")
	n, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	for _, call := range []*regexp.Regexp{calls, catches} {
		if m := call.FindStringSubmatch(lines[n-1]); m != nil {
			return strings.ToLower(m[1])
		}
	}
	return ""
}

// scriptOf is the text of the script that a command calls; "" if it calls none.
func scriptOf(args []string) string {
	switch {
	case len(args) < 2:
	case args[0] == "EVAL":
		return args[1]
	case args[0] == "EVALSHA":
		for _, text := range script.Texts {
			if sum := sha1.Sum([]byte(text)); hex.EncodeToString(sum[:]) == args[1] {
				return text
			}
		}
	}
	return ""
}

// keysText says that the user may not use one of a command's keys.
func keysText(args []string) string {
	switch {
	case len(args) < 2:
		return ""
	case strings.HasPrefix(args[0], "EVAL"):
		n, err := strconv.Atoi(args[min(2, len(args)-1)])
		if err != nil || n < 1 || 3+n > len(args) {
			return ""
		}
		args = args[3 : 3+n]
	default:
		args = args[1:2]
	}
	const most, longest = 3, 100
	var names []string
	for _, key := range args[:min(most, len(args))] {
		name := strconv.Quote(key)
		if len(key) > longest {
			name = strconv.Quote(key[:longest]) + "..."
		}
		names = append(names, name)
	}
	switch more := len(args) - len(names); {
	case more > 0:
		return fmt.Sprintf("the user may not use one of the keys %s and %d more", strings.Join(names, ", "), more)
	case len(args) > 1:
		return "the user may not use one of the keys " + And(names)
	}
	return "the user may not use the key " + names[0]
}

// lastCommand returns the words of the last of several commands. They are ours, so they are well-formed.
func lastCommand(sent []byte) (args []string) {
	for len(sent) > 0 {
		head, rest, _ := bytes.Cut(sent, []byte("\r\n"))
		n, err := strconv.Atoi(string(bytes.TrimPrefix(head, []byte("*"))))
		if err != nil {
			return nil
		}
		args = args[:0]
		for range n {
			head, rest, _ = bytes.Cut(rest, []byte("\r\n"))
			size, err := strconv.Atoi(string(bytes.TrimPrefix(head, []byte("$"))))
			if err != nil || size+2 > len(rest) {
				return nil
			}
			args, rest = append(args, string(rest[:size])), rest[size+2:]
		}
		sent = rest
	}
	return args
}

// And joins words as a sentence does.
func And(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
