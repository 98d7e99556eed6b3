package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Write the manual page",
		Long: `man writes the manual page of all commands, in the language of man(1). It is
made of what --help shows.`,
		Example: `  redlock man > /usr/local/share/man/man1/redlock.1
  redlock man | man -l -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := newTerminal(os.Stdout)
			out.printf("%s", manual(cmd.Root()))
			return out.failure()
		},
	}
}

// manual is the page, as roff.
func manual(root *cobra.Command) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %q\n", strings.ToUpper(name)) }
	fmt.Fprintf(&b, ".TH REDLOCK 1 \"\" \"%s\" \"User Commands\"\n", roff("redlock "+versionText()))
	section("name")
	b.WriteString(roff("redlock - "+root.Short) + "\n")
	section("synopsis")
	b.WriteString("\\fBredlock\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR]... [\\fIARG\\fR]...\n")
	section("description")
	writeText(&b, root.Long)
	section("commands")
	var commands []*cobra.Command
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			commands = append(commands, cmd)
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(cmd.CommandPath()), roff(cmd.Short))
		}
	}
	for _, cmd := range commands {
		section(cmd.CommandPath())
		fmt.Fprintf(&b, ".B %s\n", roff(cmd.UseLine()))
		writeText(&b, strings.Replace(cmd.Long, mastersHelp, "", 1))
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { writeFlag(&b, f) })
		if cmd.Example != "" {
			b.WriteString(".PP\nExamples:\n")
			writeText(&b, cmd.Example)
		}
	}
	section("masters")
	writeText(&b, mastersHelp)
	section("examples")
	writeText(&b, root.Example)
	return b.String()
}

// writeText writes paragraphs. One with a line that is indented, a table or code, keeps its lines.
func writeText(b *strings.Builder, text string) {
	for _, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ") {
			fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", roff(paragraph))
		} else {
			fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
		}
	}
}

func writeFlag(b *strings.Builder, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	b.WriteString(".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(b, "\\fB\\-%s\\fR, ", f.Shorthand)
	}
	value, usage := pflag.UnquoteUsage(f)
	fmt.Fprintf(b, "\\fB%s\\fR", roff("--"+f.Name))
	if value != "" {
		fmt.Fprintf(b, " \\fI%s\\fR", roff(value))
	}
	if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "0s" && d != "[]" {
		usage += fmt.Sprintf(" (default %s)", d)
	}
	fmt.Fprintf(b, "\n%s\n", roff(usage))
}

// roff escapes what would be formatting.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
