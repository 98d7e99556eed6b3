package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/conn"
)

// complain says on stderr what is wrong and what can be done about it. Texts of others in
// it, such as the name of another owner, cannot control the terminal or forge a line. It waits for nobody who reads.
func complain(what, remedy string) {
	what = strings.ReplaceAll(strings.TrimPrefix(what, "redlock: "), ": redlock: ", ": ")
	what = strings.TrimPrefix(what, "conn: ")
	text := "redlock: " + conn.Printable(what) + "\n"
	if remedy != "" {
		text += "  " + conn.Printable(remedy) + "\n"
	}
	say(text)
}

// speech is what is said on stderr. Who says something never waits: a pipe that nobody reads, or a terminal that Ctrl-S
// has stopped, would keep him from renewing the lock, from passing signals on, and from ending the command. A
// goroutine writes, for as long as there is something to be said.
//
// mu is a leaf: who says something may hold any other lock.
var speech struct {
	mu      sync.Mutex
	texts   []string      // what is to be said, in order
	dropped int           // texts before these that were left out, as nobody has read what came before
	done    chan struct{} // is closed when all is said; nil if it is
}

const (
	mostWords = 200             // texts that may wait; then the oldest is left out: the last ones say how it ended
	lastWords = 2 * time.Second // how long our end waits for who reads them
)

// say has a text said, after those before it.
func say(text string) {
	speech.mu.Lock()
	defer speech.mu.Unlock()
	if len(speech.texts) == mostWords {
		speech.texts = append(speech.texts[:0], speech.texts[1:]...)
		speech.dropped++
	}
	speech.texts = append(speech.texts, text)
	if speech.done == nil {
		speech.done = make(chan struct{})
		go speak(os.Stderr)
	}
}

func speak(to io.Writer) {
	for {
		text := ""
		speech.mu.Lock()
		switch {
		case speech.dropped > 0:
			text = fmt.Sprintf("redlock: %s left out here, as nobody has read stderr\n", plural(speech.dropped, "message"))
			speech.dropped = 0
		case len(speech.texts) > 0:
			text = speech.texts[0]
			speech.texts = append(speech.texts[:0], speech.texts[1:]...)
		default:
			close(speech.done)
			speech.done = nil
			speech.mu.Unlock()
			return
		}
		speech.mu.Unlock()
		io.WriteString(to, text) // in one write: others write there, too
	}
}

// allSaid returns when all is said, or when nobody has read it for lastWords. Only our end may wait for that, when no
// lock and no command is left.
func allSaid() {
	speech.mu.Lock()
	done := speech.done
	speech.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(lastWords):
	}
}
