package redlock

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

const (
	tokenBytes = 20 // of randomness
	tokenChars = 27 // they make in base64
	maxOwner   = 128
)

// appendToken appends a fresh token: an owner, if there is one, a slash, and
// 160 random bits. It is new for every attempt, so that a late answer or a late
// release of one attempt can never concern another.
func appendToken(dst []byte, owner string) []byte {
	var raw [tokenBytes]byte
	rand.Read(raw[:]) // never fails
	if owner != "" {
		dst = append(append(dst, owner...), '/')
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw[:])
}

// ownerOf returns the owner in a token; empty if it has none, or if another
// library made it.
func ownerOf(token string) string {
	i := strings.LastIndexByte(token, '/')
	if i < 0 || len(token)-i-1 != tokenChars {
		return ""
	}
	return token[:i]
}

// defaultOwner is name@host:pid, or host:pid.
func defaultOwner(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if name != "" {
		name += "@"
	}
	owner := fmt.Sprintf("%s%s:%d", name, host, os.Getpid())
	if checkOwner(owner) != nil { // a name that we did not choose
		return fmt.Sprintf("unknown:%d", os.Getpid())
	}
	return owner
}

func checkOwner(owner string) error {
	if len(owner) > maxOwner {
		return fmt.Errorf("owner has %d bytes, at most %d are possible", len(owner), maxOwner)
	}
	for _, r := range owner {
		if r <= ' ' || r > '~' {
			return fmt.Errorf("owner %q has characters other than printable ASCII without spaces", owner)
		}
	}
	return nil
}
