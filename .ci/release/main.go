// Command release prepares a version of all modules of this repository: it checks, commits and tags. Nothing leaves the
// machine without -push.
//
// A release is two commits. In the first, which is tagged, each module requires the others at this version. In the
// second the replacements are back, by which a module of the tree is built with its neighbours as they stand.
package main

import (
	"flag"
	"fmt"
	"os"
)

const rootModule = "github.com/redburst/redburst"

func main() {
	r := release{root: ".", out: os.Stdout, gate: []string{".ci/run"}}
	flag.StringVar(&r.version, "version", "", "the version, as in v0.1.0")
	flag.BoolVar(&r.push, "push", false, "push the commits and the tags to origin, all or none")
	flag.StringVar(&r.root, "C", r.root, "the repository")
	dist := flag.String("dist", "", "make the archives and packages of the command in this directory, and nothing else")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := error(nil)
	if *dist != "" {
		err = makeDist(r.root, *dist, r.version)
	} else {
		err = r.do()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}
