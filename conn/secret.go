package conn

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"weak"
)

// A Secret is a text that is never printed, such as a password. Package fmt with any verb,
// encoding/json and log/slog show "..." in its place, and nothing for an empty one. The zero
// Secret is the empty text. Only [Secret.Reveal] returns the text.
//
// Package fmt calls no method of what is in an unexported field, and some test libraries call none
// at all. They print what they find in a value, and find no text in a Secret.
//
// Two Secrets are == if their texts are. So a Secret can be compared, and can be the key of a map.
type Secret struct {
	text *hidden // nil if it is empty; one for each text
}

// hidden has the text inside a function, into which no library looks.
type hidden struct {
	reveal func() string
}

// secrets has what all Secrets share that exist now.
var secrets struct {
	sync.Mutex
	of map[string]weak.Pointer[hidden] // by their texts
}

// printed stands for the text of a Secret.
const printed = "..."

// NewSecret returns the Secret of a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	secrets.Lock()
	defer secrets.Unlock()
	if h := secrets.of[text].Value(); h != nil {
		return Secret{h}
	}
	h := &hidden{func() string { return text }}
	of := weak.Make(h)
	if secrets.of == nil {
		secrets.of = map[string]weak.Pointer[hidden]{}
	}
	secrets.of[text] = of
	runtime.AddCleanup(h, func(text string) {
		secrets.Lock()
		defer secrets.Unlock()
		if secrets.of[text] == of { // the text may have a new one
			delete(secrets.of, text)
		}
	}, text)
	return Secret{h}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text.reveal()
}

// IsZero reports whether the text is empty.
func (s Secret) IsZero() bool { return s.text == nil }

// String returns "...", and nothing for an empty text.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return printed
}

// Format prints what [Secret.String] returns, whatever the verb is.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalText returns what [Secret.String] returns. It is also for JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue returns what [Secret.String] returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// UnmarshalText makes s the Secret of a text. So a Secret can be a field of a configuration that
// is read from JSON, from the environment or from flags. The text "..." is an error, since it is
// what a printed Secret shows.
func (s *Secret) UnmarshalText(text []byte) error {
	if string(text) == printed {
		return errors.New("a secret that was printed cannot be read")
	}
	*s = NewSecret(string(text))
	return nil
}
