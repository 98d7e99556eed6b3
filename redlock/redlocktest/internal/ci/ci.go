// Package ci says whether a gate runs, which must not pass by skipping what it cannot do.
package ci

import (
	"os"
	"strconv"
)

// Runs reports whether the environment has CI=true, or another word for it.
func Runs() bool {
	ci, _ := strconv.ParseBool(os.Getenv("CI"))
	return ci
}
