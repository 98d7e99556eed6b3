package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/redburst/redburst/redlock/internal/story"
)

// checkPage returns an error if a page must not be written to a file: it is there already, and is not such a page.
func checkPage(name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	refused := errors.New("it is there already, and is no page of redlock explain")
	if !info.Mode().IsRegular() {
		return refused
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 1024)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return err
	}
	if !story.IsHTML(head[:n]) {
		return refused
	}
	return nil
}

// writePage writes a page, or leaves the one that was there. It is for those alone who may see the records.
func writePage(name string, page []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".redlock-*.html") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(page)
	if err = errors.Join(err, f.Close()); err == nil {
		if err = checkPage(name); err == nil {
			err = os.Rename(f.Name(), name)
		}
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// shownName is the name of a record without what may be a secret: a user, a password, or a query.
func shownName(name string) string {
	if !isURL(name) {
		return name
	}
	u, err := url.Parse(name)
	if err != nil {
		scheme, _, _ := strings.Cut(name, ":")
		return fmt.Sprintf("an address that begins with %s:", scheme)
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func isURL(name string) bool {
	return strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://")
}
