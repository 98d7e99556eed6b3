package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// platforms are those for which there is an archive. Linux has packages, too.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// buildHost stands in a .rpm in place of the name of the machine that made it.
const buildHost = "localhost"

// A dist is what is made of one commit. The same commit, version and Go make the same bytes, wherever they are made.
type dist struct {
	root, tmp string
	version   string // v0.1.0
	commit    string
	made      time.Time // when the commit was made; all files have this time
	shared    map[string][]byte
}

// makeDist makes the archives and packages of the command, and the list of their checksums.
func makeDist(root, to, version string, only ...string) error {
	if version == "" {
		return fmt.Errorf("-dist needs -version")
	}
	tmp, err := os.MkdirTemp("", "dist")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	d := dist{root: root, tmp: tmp, version: version}
	said, err := run(root, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(said), " ")
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return err
	}
	d.commit, d.made = commit, time.Unix(at, 0).UTC()
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := d.collect(); err != nil {
		return err
	}
	var sums strings.Builder
	for _, platform := range platforms {
		if len(only) > 0 && !slices.Contains(only, platform) {
			continue
		}
		made, err := d.platform(platform)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		for _, name := range slices.Sorted(maps.Keys(made)) {
			if err := os.WriteFile(filepath.Join(to, name), made[name], 0o644); err != nil {
				return err
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(made[name]), name)
		}
	}
	return os.WriteFile(filepath.Join(to, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// build makes the command for a platform.
func (d *dist) build(platform, to string) error {
	goos, goarch, _ := strings.Cut(platform, "/")
	_, err := runEnv(d.root, []string{"GOOS=" + goos, "GOARCH=" + goarch, "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="},
		"go", "build", "-trimpath", "-buildvcs=false", "-o", to,
		"-ldflags", "-s -w -buildid= -X main.version="+d.version+" -X main.commit="+d.commit, "./redlock/cmd/redlock")
	return err
}

// collect makes what is the same for all platforms. The command writes its manual and its completions itself.
func (d *dist) collect() error {
	d.shared = make(map[string][]byte)
	for to, from := range map[string]string{"LICENSE": "LICENSE", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md"} {
		text, err := os.ReadFile(filepath.Join(d.root, from))
		if err != nil {
			return err
		}
		d.shared[to] = text
	}
	command := filepath.Join(d.tmp, "here")
	if err := d.build(runtime.GOOS+"/"+runtime.GOARCH, command); err != nil {
		return err
	}
	for to, args := range map[string][]string{
		"redlock.1":                {"man"},
		"completions/redlock.bash": {"completion", "bash"},
		"completions/_redlock":     {"completion", "zsh"},
		"completions/redlock.fish": {"completion", "fish"},
		"completions/redlock.ps1":  {"completion", "powershell"},
	} {
		said, err := run(d.root, command, args...)
		if err != nil {
			return err
		}
		d.shared[to] = []byte(said)
	}
	return nil
}

// platform returns the files for a platform, by their names.
func (d *dist) platform(platform string) (map[string][]byte, error) {
	to := filepath.Join(d.tmp, "command")
	if err := d.build(platform, to); err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(to)
	if err != nil {
		return nil, err
	}
	goos, goarch, _ := strings.Cut(platform, "/")
	base := fmt.Sprintf("redlock_%s_%s_%s", strings.TrimPrefix(d.version, "v"), goos, goarch)
	made := make(map[string][]byte)
	inside := maps.Clone(d.shared)
	if goos == "windows" {
		inside["redlock.exe"] = binary
		made[base+".zip"], err = d.zip(base, inside)
		return made, err
	}
	inside["redlock"] = binary
	if made[base+".tar.gz"], err = d.tar(base, inside); err != nil || goos != "linux" {
		return made, err
	}
	for format, ending := range map[string]string{"deb": ".deb", "rpm": ".rpm"} {
		if made[base+ending], err = d.pack(format, goarch, binary); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// mode returns the permissions of a file of an archive, or of a package.
func mode(name string) int64 {
	switch name {
	case "redlock", "redlock.exe", "/usr/bin/redlock":
		return 0o755
	}
	return 0o644
}

func (d *dist) tar(base string, inside map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	packed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(inside)) {
		err := w.WriteHeader(&tar.Header{
			Name: base + "/" + name, Mode: mode(name), Size: int64(len(inside[name])), ModTime: d.made, Format: tar.FormatUSTAR,
		})
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(inside[name]); err != nil {
			return nil, err
		}
	}
	err = cmp.Or(w.Close(), packed.Close())
	return b.Bytes(), err
}

func (d *dist) zip(base string, inside map[string][]byte) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(inside)) {
		header := &zip.FileHeader{Name: base + "/" + name, Method: zip.Deflate, Modified: d.made}
		header.SetMode(os.FileMode(mode(name)))
		f, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(inside[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// pack makes a package of a Linux distribution. It enables no unit, and changes nothing under /etc.
func (d *dist) pack(format, goarch string, binary []byte) ([]byte, error) {
	zsh := "/usr/share/zsh/site-functions/_redlock"
	if format == "deb" {
		zsh = "/usr/share/zsh/vendor-completions/_redlock"
	}
	manual, err := d.gzip(d.shared["redlock.1"])
	if err != nil {
		return nil, err
	}
	inside := map[string][]byte{
		"/usr/bin/redlock":                                  binary,
		"/usr/share/man/man1/redlock.1.gz":                  manual,
		"/usr/share/bash-completion/completions/redlock":    d.shared["completions/redlock.bash"],
		"/usr/share/fish/vendor_completions.d/redlock.fish": d.shared["completions/redlock.fish"],
		zsh:                                d.shared["completions/_redlock"],
		"/usr/share/doc/redlock/copyright": d.shared["LICENSE"],
	}
	deploy := filepath.Join(d.root, "redlock", "contrib", "deploy")
	units, err := filepath.Glob(filepath.Join(deploy, "systemd", "*@.*"))
	if err != nil {
		return nil, err
	}
	for _, name := range units {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		inside["/usr/lib/systemd/system/"+filepath.Base(name)] = bytes.ReplaceAll(text, []byte("/usr/local/bin/redlock"), []byte("/usr/bin/redlock"))
	}
	for _, name := range []string{"redis.conf", "tls.conf", "users.acl", "systemd/client.env", "systemd/network.conf", "systemd/tls.conf"} {
		text, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			return nil, err
		}
		inside["/usr/share/doc/redlock/examples/"+name] = text
	}
	info := &nfpm.Info{
		Name: "redlock", Arch: goarch, Platform: "linux", Version: d.version, Release: "1", MTime: d.made,
		Maintainer: "The redburst authors", Section: "database", Priority: "optional", License: "MIT",
		Homepage:    "https://" + rootModule,
		Description: "a distributed lock on independent Redis masters, as a command",
		Overridables: nfpm.Overridables{
			Suggests: []string{"redis-server"},
			RPM:      nfpm.RPM{BuildHost: buildHost},
		},
		DisableGlobbing: true,
	}
	for i, to := range slices.Sorted(maps.Keys(inside)) {
		from := filepath.Join(d.tmp, strconv.Itoa(i))
		if err := os.WriteFile(from, inside[to], 0o644); err != nil {
			return nil, err
		}
		info.Contents = append(info.Contents, &files.Content{Source: from, Destination: to, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: os.FileMode(mode(to)), MTime: d.made,
		}})
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return nil, err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = packager.Package(info, &b)
	return b.Bytes(), err
}

func (d *dist) gzip(text []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(text)
	err = cmp.Or(err, w.Close())
	return b.Bytes(), err
}
