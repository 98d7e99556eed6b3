package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// registerKeyBase64 lets a command whose arguments are keys have them in base64. No argument has a NUL, and a shell takes
// the line ends away with which the output of a command ends.
func registerKeyBase64(cmd *cobra.Command) {
	cmd.Flags().Bool("key-base64", false, "each KEY is given in base64, as key_base64 of --json has it")
}

// decodeKeys turns keys that are given in base64 into the keys.
func decodeKeys(cmd *cobra.Command, args []string) error {
	if given, err := cmd.Flags().GetBool("key-base64"); err != nil || !given { // hold has no such flag
		return nil
	}
	for i, text := range args {
		key, err := base64.StdEncoding.DecodeString(text)
		switch {
		case err != nil:
			return usageError("", "the KEY %q is no base64, as --key-base64 says: %w", text, err)
		case len(key) == 0: // line ends mean nothing
			return usageError("", "the KEY is empty")
		}
		args[i] = string(key)
	}
	return nil
}

// someKeys wants one KEY or more.
func someKeys(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usageError("usage: "+cmd.UseLine(), "the KEY is missing")
	case slices.Contains(args, ""):
		return usageError("", "the KEY is empty")
	}
	return decodeKeys(cmd, args)
}

func keyOnly(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) != 1:
		return usageError("usage: "+cmd.UseLine(), "one KEY is wanted, %d were given", len(args))
	case args[0] == "":
		return usageError("", "the KEY is empty")
	}
	return decodeKeys(cmd, args)
}

// keyAndCommand wants KEY -- COMMAND.
func keyAndCommand(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || cmd.ArgsLenAtDash() == 0:
		return usageError("usage: "+cmd.UseLine(), "the KEY is missing")
	case len(args) == 1:
		return usageError("usage: "+cmd.UseLine(), "the COMMAND is missing")
	case args[0] == "":
		return usageError("", "the KEY is empty")
	case cmd.ArgsLenAtDash() > 1:
		return usageError("usage: "+cmd.UseLine(),
			"%d words before the --, where only the KEY is expected", cmd.ArgsLenAtDash())
	}
	return nil
}

// offered are the keys that no shell takes for something else, also if others have chosen them.
var offered = regexp.MustCompile(`^[\p{L}\d_/@{][\p{L}\d_.:/@%+{}-]*$`)

// complete offers the keys of locks that begin with part where the usage has a KEY or a PATTERN. It says nothing of what
// fails, and takes a second at most: somebody has pressed a key, and waits.
func (f *mastersFlags) complete(cmd *cobra.Command, args []string, part string) (keys []cobra.Completion, _ cobra.ShellCompDirective) {
	switch {
	case len(args) > 0 && strings.Contains(cmd.Use, "COMMAND"):
		return nil, cobra.ShellCompDirectiveDefault
	case len(args) > 0 && !strings.Contains(cmd.Use, "KEY..."), !strings.Contains(cmd.Use, "KEY") && !strings.Contains(cmd.Use, "PATTERN"),
		f.file == "-", f.passwordFile == "-": // the keyboard's
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	slices.Sort(f.masters)
	f.masters = slices.Compact(f.masters) // cobra parses the flags twice
	set, err := f.masterSet()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	client, err := redlock.Open(ctx, set.clientConfig("complete"))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer client.Close()
	for lock, err := range client.Locks(ctx, strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(part)+"*") {
		if err != nil || len(keys) == 1000 {
			break
		}
		if offered.MatchString(lock.Key) && !(strings.Contains(lock.Key, "{") && strings.Contains(lock.Key, "..")) && !slices.Contains(args, lock.Key) {
			keys = append(keys, lock.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), cobra.ShellCompDirectiveNoFileComp // a lock and permits can have one key
}

func commandFlagError(cmd *cobra.Command, err error) error {
	if unit := unitError(err); unit != err {
		return unit
	}
	return usageError("flags of the command itself stand behind a --: "+cmd.UseLine(), "%w", err)
}

// unitError says how a duration is written, if that is what is wrong.
func unitError(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && strings.Contains(err.Error(), "missing unit in duration") {
		value := invalid.GetValue()
		return usageError(fmt.Sprintf("write %ss, or %[1]sm for minutes", value), "--%s %s has no unit", invalid.GetFlag().Name, value)
	}
	return err
}

// isKey reports whether a pattern stands for one key.
func isKey(pattern string) bool {
	return pattern != "" && !strings.ContainsAny(strings.NewReplacer(`\*`, "", `\?`, "", `\[`, "").Replace(pattern), "*?[")
}
