package main

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mastersHelp ends the help of every command that needs masters.
const mastersHelp = `
The masters come from --masters, or --masters-file (one on each line, # begins a
comment; - is stdin), or such a file that the environment variable
REDLOCK_MASTERS_FILE names, or the variable REDLOCK_MASTERS. Write them as
host:port, redis://host:port/db, rediss://host:port (TLS), the same with valkey
for redis, or unix:///path. Write the master of a Sentinel group as
sentinel://host:port,host:port/group (TLS: sentinels://), and a Redis Cluster as
cluster://host:port,host:port (TLS: clusters://) with a --prefix such as
{locks}: for the keys. What follows a cluster in a list are nodes of it, up to
an address with a scheme. No sentinel is told the masters' password. If they
demand one, put it into REDLOCK_SENTINEL_PASSWORD, and the name of its user, if
any, into --sentinel-username or REDLOCK_SENTINEL_USERNAME.

The command line takes no passwords, because everybody can read it. Put them
into the URLs of the file or of REDLOCK_MASTERS, or into REDLOCK_PASSWORD (with
REDLOCK_USERNAME), or into a --password-file. In a URL write %2C for a comma,
%20 for a space, and %40, %3A and %25 for @, : and %. No other file than a
--masters-file can be stdin (-), where the command of run has its own input.

A master that persists every write before it answers, and comes back with its
own disk, need not wait after a restart. Say with --durable, or
REDLOCK_DURABLE=true, that all of them do so. They still wait when they are new,
or have a new disk.`

const mastersRemedy = "name them with --masters a:6379,b:6379,c:6379, --masters-file, REDLOCK_MASTERS_FILE or REDLOCK_MASTERS"

// The mastersFlags say which masters there are and how to reach them.
type mastersFlags struct {
	masters      []string
	file         string
	passwordFile string
	prefix       string
	durable      bool
	flags        *pflag.FlagSet // which were given
	tls          bool
	caCert       string
	cert, key    string
	dialTimeout  time.Duration

	once   map[string]string // what was read of files that can be read only once, such as pipes
	frozen bool              // no file is read for the first time any more

	sentinelUsername string
	trustAnySentinel bool
}

// register adds the flags.
func (f *mastersFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.flags, cmd.ValidArgsFunction = flags, f.complete
	flags.StringArrayVarP(&f.masters, "masters", "m", nil, "the masters' `addresses`, separated by commas")
	flags.StringVar(&f.file, "masters-file", "", "`file` with the masters' addresses, one on each line; - is stdin")
	flags.StringVar(&f.passwordFile, "password-file", "", "`file` whose first line is the password")
	flags.StringVar(&f.prefix, "prefix", "", "`text` in front of every key on the masters, as the locks' clients have it (Config.Prefix; or REDLOCK_PREFIX)")
	flags.BoolVar(&f.durable, "durable", false, "every master has appendonly yes and appendfsync always, and comes back with its own disk")
	flags.BoolVar(&f.tls, "tls", false, "speak TLS with every master")
	flags.StringVar(&f.caCert, "cacert", "", "`file` with the certificates to trust (PEM; implies --tls)")
	flags.StringVar(&f.cert, "cert", "", "`file` with our certificate (PEM; implies --tls)")
	flags.StringVar(&f.key, "key", "", "`file` with the key of --cert (PEM)")
	flags.DurationVar(&f.dialTimeout, "dial-timeout", time.Second, "how long connecting to a master may take")
	flags.StringVar(&f.sentinelUsername, "sentinel-username", "", "`name` of the sentinels' user, if they demand one")
	flags.BoolVar(&f.trustAnySentinel, "trust-any-sentinel", false, "believe a minority of a group's sentinels, if the others are down; one that lies then gets the password")
	cmd.MarkFlagsMutuallyExclusive("masters", "masters-file")
	cmd.MarkFlagsRequiredTogether("cert", "key")
	for _, name := range []string{"masters-file", "password-file", "cacert", "cert", "key"} {
		if err := cmd.MarkFlagFilename(name); err != nil {
			panic(err) // there is no such flag
		}
	}
}

// masterSet returns what the flags, files and variables say.
func (f *mastersFlags) masterSet() (s masterSet, err error) {
	if err = f.checkFiles(); err != nil {
		return s, err
	}
	if s.masters, _, err = f.addresses(); err != nil {
		return s, err
	}
	if s.durable, err = f.declared(); err != nil {
		return s, err
	}
	s.connect, s.certificates, err = f.options()
	return s, err
}

// checkFiles reports which file cannot be stdin: the command that we run may have that.
func (f *mastersFlags) checkFiles() error {
	for _, flag := range []string{"password-file", "cacert", "cert", "key"} {
		if f.flags.Lookup(flag).Value.String() == stdin {
			return usageError("write ./- for a file of this name", "--%s cannot be stdin (-): only --masters-file can", flag)
		}
	}
	return nil
}

// addresses returns the masters, at least one, and those of before that were shut down for good.
func (f *mastersFlags) addresses() (all, down []string, err error) {
	all, down, from, err := f.named()
	switch {
	case err != nil:
		return nil, nil, err
	case len(all) == 0:
		return nil, nil, usageError(mastersRemedy, "no masters in %s", from)
	}
	all = rejoined(all)
	for i, a := range slices.Concat(all, down) {
		if _, err := conn.ParseAddress(a); err != nil {
			return nil, nil, usageError("written as host:port, redis://host:port, rediss://host:port, unix:///path, sentinel://host:port,host:port/group or cluster://host:port,host:port",
				"master %d in %s: %w", i+1, from, err)
		}
	}
	for _, a := range all {
		if contains(down, a) {
			return nil, nil, usageError("", "%s is a master in %s, and was shut down for good, too", conn.Redact(a), from)
		}
	}
	return all, down, nil
}

// named returns the addresses as they were given, and where they were given.
func (f *mastersFlags) named() (all, down []string, from string, err error) {
	switch env := os.Getenv("REDLOCK_MASTERS"); {
	case len(f.masters) > 0:
		for _, a := range strings.Split(strings.Join(f.masters, ","), ",") {
			if a = strings.TrimSpace(a); hasCredentials(a) {
				return nil, nil, "", usageError("use REDLOCK_USERNAME with REDLOCK_PASSWORD or --password-file, or --masters-file or REDLOCK_MASTERS instead",
					"--masters holds a username or password, which everybody on this machine can read")
			} else if a != "" {
				all = append(all, a)
			}
		}
		return all, nil, "--masters", nil
	case f.file != "":
		all, down, err := f.readMasters(f.file)
		if err != nil {
			return nil, nil, "", usageError("", "--masters-file: %w", err)
		}
		if f.file == stdin {
			return all, down, "stdin", nil
		}
		return all, down, f.file, nil
	case f.inFile():
		name := os.Getenv(fileVariable)
		if name == stdin {
			return nil, nil, "", usageError("'--masters-file -' does that", "%s cannot be stdin, as it is read again", fileVariable)
		}
		if all, down, err = f.readMasters(name); err != nil {
			return nil, nil, "", usageError("", "%s: %w", fileVariable, err)
		}
		return all, down, name, nil
	case env != "":
		return strings.FieldsFunc(env, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }), nil, "REDLOCK_MASTERS", nil
	}
	return nil, nil, "", usageError(mastersRemedy, "no masters given")
}

// fileVariable is the environment variable that names a file with the masters.
const fileVariable = "REDLOCK_MASTERS_FILE"

// inFile reports whether the addresses are in the file that REDLOCK_MASTERS_FILE names.
func (f *mastersFlags) inFile() bool {
	return len(f.masters) == 0 && f.file == "" && os.Getenv(fileVariable) != ""
}

// hasCredentials reports whether a part of a list can hold the end of a username or password,
// which is an @. What stands before it proves nothing: a comma in a password has cut it off, or
// its colon is encoded. Only the path of a Unix socket may hold an @ as well.
func hasCredentials(part string) bool {
	scheme, rest, _ := strings.Cut(part, "://")
	return strings.Contains(part, "@") && !(strings.EqualFold(scheme, "unix") && strings.HasPrefix(rest, "/"))
}

// rejoined joins the addresses again that were split at the commas between their
// sentinels or nodes. What follows a cluster's is a node of it, unless it has a scheme, or the
// cluster's ends with a slash.
func rejoined(parts []string) (all []string) {
	open, cluster := false, false // the last one may lack its group's name, or nodes
	for _, part := range parts {
		if open && !(cluster && strings.Contains(part, "://")) {
			all[len(all)-1] += "," + part
		} else {
			all = append(all, part)
		}
		scheme, rest, ok := strings.Cut(all[len(all)-1], "://")
		cluster = strings.Contains(strings.ToLower(scheme), "cluster")
		open = ok && (cluster || strings.Contains(strings.ToLower(scheme), "sentinel")) && !strings.Contains(rest, "/")
	}
	return all
}

// stdin is a --masters-file.
const stdin = "-"

// shutDown begins a line of a file with the masters that names no master: somebody's word that the one which had a place
// there before is shut down for good.
const shutDown = "shut down:"

// byteOrderMark is what some editors begin a file with.
const byteOrderMark = "\ufeff"

func (f *mastersFlags) readMasters(name string) (all, down []string, err error) {
	text, err := f.text(name)
	if err != nil {
		return nil, nil, err
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	for first := true; lines.Scan(); first = false {
		list, text := &all, lines.Text()
		if first {
			text = strings.TrimPrefix(text, byteOrderMark)
		}
		line, word := strings.CutPrefix(strings.TrimSpace(text), shutDown)
		if word {
			list = &down
		}
		// A # within a word may belong to a password.
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "#") {
				break
			}
			*list = append(*list, word)
		}
	}
	return all, down, lines.Err()
}

// maxText bounds a file that we read whole.
const maxText = 8 << 20

func irregular(name string) error { return fmt.Errorf("%s is no regular file now", name) }

// text returns what is in a file. At the start that may be a pipe, such as <(command) of a shell, which can be read once.
func (f *mastersFlags) text(name string) (string, error) {
	if text, ok := f.once[name]; ok {
		return text, nil
	}
	file, regular := os.Stdin, false
	if name != stdin {
		if info, err := os.Stat(name); err != nil {
			return "", err
		} else if f.frozen && !info.Mode().IsRegular() { // to open a device may do something
			return "", irregular(name)
		}
		flags := os.O_RDONLY
		if f.frozen {
			flags |= syscall.O_NONBLOCK // it may be a pipe by now
		}
		var err error
		if file, err = os.OpenFile(name, flags, 0); err != nil {
			return "", err
		}
		defer file.Close()
		if info, err := file.Stat(); err != nil {
			return "", err
		} else if regular = info.Mode().IsRegular(); !regular && f.frozen {
			return "", irregular(name)
		}
	}
	text, err := io.ReadAll(io.LimitReader(file, maxText+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > maxText:
		return "", fmt.Errorf("%s is longer than %d MiB", name, maxText>>20)
	}
	if !regular {
		if f.once == nil {
			f.once = map[string]string{}
		}
		f.once[name] = string(text)
	}
	return string(text), nil
}

// files are the files that the flags and variables name.
func (f *mastersFlags) files() (all []string) {
	list := f.file
	if f.inFile() {
		list = os.Getenv(fileVariable)
	}
	for _, name := range []string{list, f.passwordFile, f.caCert, f.cert, f.key} {
		if name != "" && name != stdin && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// declared reports whether the masters were declared to persist every write.
func (f *mastersFlags) declared() (bool, error) {
	env := os.Getenv("REDLOCK_DURABLE")
	if env == "" || f.flags.Changed("durable") {
		return f.durable, nil
	}
	durable, err := strconv.ParseBool(env)
	if err != nil {
		return false, usageError("", "REDLOCK_DURABLE is %q, neither true nor false", env)
	}
	return durable, nil
}

// options returns how the masters are connected, and the texts that its TLS was made of.
func (f *mastersFlags) options() (opt conn.Options, certificates string, err error) {
	opt = conn.Options{
		Username:    os.Getenv("REDLOCK_USERNAME"),
		Password:    conn.NewSecret(os.Getenv("REDLOCK_PASSWORD")),
		DialTimeout: f.dialTimeout,
		ClusterKey:  f.prefix,
	}
	if !f.flags.Changed("prefix") {
		opt.ClusterKey = os.Getenv("REDLOCK_PREFIX")
	}
	if f.passwordFile != "" {
		text, err := f.text(f.passwordFile)
		if err != nil {
			return opt, "", usageError("", "--password-file: %w", err)
		}
		line, _, _ := strings.Cut(strings.TrimPrefix(text, byteOrderMark), "\n")
		if opt.Password = conn.NewSecret(strings.TrimSuffix(line, "\r")); opt.Password.IsZero() {
			return opt, "", usageError("the password is its first line", "--password-file: %s is empty", f.passwordFile)
		}
	}
	opt.SentinelUsername = cmp.Or(f.sentinelUsername, os.Getenv("REDLOCK_SENTINEL_USERNAME"))
	opt.SentinelPassword = conn.NewSecret(os.Getenv("REDLOCK_SENTINEL_PASSWORD"))
	opt.TrustAnySentinel = f.trustAnySentinel
	if !f.tls && f.caCert == "" && f.cert == "" {
		return opt, "", nil
	}
	opt.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caCert != "" {
		text, err := f.text(f.caCert)
		if certificates = text; err == nil {
			opt.TLS.RootCAs = x509.NewCertPool()
			if !opt.TLS.RootCAs.AppendCertsFromPEM([]byte(text)) {
				err = errors.New(f.caCert + " holds no certificate in PEM form")
			}
		}
		if err != nil {
			return opt, "", usageError("", "--cacert: %w", err)
		}
	}
	if f.cert != "" {
		cert, err := f.text(f.cert)
		key := ""
		if err == nil {
			key, err = f.text(f.key)
		}
		var pair tls.Certificate
		if err == nil {
			pair, err = tls.X509KeyPair([]byte(cert), []byte(key))
		}
		if err != nil {
			return opt, "", usageError("", "--cert and --key: %w", err)
		}
		opt.TLS.Certificates = []tls.Certificate{pair}
		certificates += "\n" + cert + "\n" + key
	}
	return opt, certificates, nil
}
