//go:build unix

package flight

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/stretchr/testify/require"
)

const processEnv = "REDBURST_FLIGHT_PROCESS"

// TestMain can be a process that records, says so, and waits for its end.
func TestMain(m *testing.M) {
	what, file, is := strings.Cut(os.Getenv(processEnv), "=")
	if !is {
		os.Exit(m.Run())
	}
	opt := Options{File: file}
	if what == "quit" {
		opt = Options{DumpDir: file, DumpOnQuit: true}
	}
	rec, err := New(opt)
	if err != nil {
		panic(err)
	}
	cfg, err := rec.Attach(redlock.Config{})
	if err != nil {
		panic(err)
	}
	for i := range 1000 {
		cfg.Observers[0](context.Background(), &redlock.Event{Kind: behind.Wait, Key: fmt.Sprint("key ", i)})
	}
	fmt.Println("recorded")
	io.Copy(io.Discard, os.Stdin)
}

// process starts one, and returns when it has recorded.
func process(t *testing.T, what, file string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processEnv+"="+what+"="+file)
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { in.Close(); cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, stderr)
	require.Equal(t, "recorded\n", line)
	return cmd, stderr
}

func requireThousand(t *testing.T, name string) *record.Record {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	r := read(t, text)
	waits := of(r, record.KindWait)
	require.Len(t, waits, 1000)
	require.Equal(t, "key 999", waits[999].Key)
	return r
}

func TestFileOutlivesAKill(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "record")
	cmd, _ := process(t, "file", name)
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	r := requireThousand(t, name)
	require.Equal(t, cmd.Process.Pid, r.About.PID)
	require.Nil(t, r.About.Ended)
	require.Zero(t, r.Torn)
	rec := newRecorder(t, Options{File: name}) // nobody has the lock any more
	require.NoError(t, rec.Close())
	requireThousand(t, name+".old")
}

func TestFileIsOneProcesss(t *testing.T) {
	t.Parallel()
	if !mapped {
		t.Skip("files are not locked")
	}
	name := filepath.Join(t.TempDir(), "record")
	process(t, "file", name)
	_, err := New(Options{File: name})
	require.ErrorContains(t, err, "%p")
	requireThousand(t, name)
}

// The process ends by the signal all the same.
func TestQuitIsDumped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, stderr := process(t, "quit", dir)
	require.NoError(t, cmd.Process.Signal(syscall.SIGQUIT))
	require.Error(t, cmd.Wait())
	require.Contains(t, stderr.String(), "SIGQUIT")
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	requireThousand(t, files[0])
}

// A file that somebody cuts, as a rotation of logs may, ends the record and not the program.
func TestFileThatIsCutEndsTheRecord(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "record")
	rec := newRecorder(t, Options{File: name, Size: minSize})
	if !rec.ring.file.mapped {
		t.Skip("it is not mapped")
	}
	cfg, err := rec.Attach(redlock.Config{})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, 0))
	for range 10 {
		cfg.Observers[0](t.Context(), &redlock.Event{Kind: behind.Wait, Key: "k"})
	}
	require.ErrorContains(t, rec.Err(), "cannot be written")
	_, err = rec.WriteTo(io.Discard)
	require.Error(t, err)
	require.Error(t, rec.Close())
}
