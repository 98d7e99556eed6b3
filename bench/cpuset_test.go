package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPinsAreRead(t *testing.T) {
	usable := []int{0, 1, 2, 3, 4, 5, 7}
	for text, want := range map[string]Pins{
		"masters=1,clients=0":           {Masters: []int{1}, Clients: []int{0}},
		"clients=0-1,masters=2-5,7":     {Masters: []int{2, 3, 4, 5, 7}, Clients: []int{0, 1}},
		"masters=2,2-3,clients=0,1,4-5": {Masters: []int{2, 3}, Clients: []int{0, 1, 4, 5}},
	} {
		got, err := parsePins(text, usable)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := parsePins(got.String(), usable)
		require.NoError(t, err, got.String())
		require.Equal(t, got, again)
	}
	for text, want := range map[string]string{
		"masters=6,clients=0":           "CPU 6 is not there, or this process may not use it; there are 0-5,7",
		"masters=2-9,clients=0":         "CPU 6 is not there",
		"masters=0-2,clients=2-3":       "CPU 2 is for both masters and clients",
		"masters=0":                     "both masters and clients need CPUs",
		"":                              "not of the form",
		"2-5":                           "not of the form",
		"servers=2,clients=0":           "not of the form",
		"masters=two,clients=0":         `"two" is neither a CPU nor a range`,
		"masters=5-2,clients=0":         "neither a CPU nor a range",
		"masters=,clients=0":            "neither a CPU nor a range",
		"masters=-1,clients=0":          "neither a CPU nor a range",
		"masters=0-4000000000,clients=": "neither a CPU nor a range",
	} {
		_, err := parsePins(text, usable)
		require.ErrorContains(t, err, want, text)
	}
}

func init() {
	roles["pinned"] = servePinned
	roles["allowed"] = func(_ *bufio.Reader, out io.Writer) error {
		list, err := allowed(os.Getpid())
		fmt.Fprintln(out, list)
		return err
	}
}

// servePinned pins itself and a master, and says which CPUs it has itself, the master, the master after it was
// started again, and a child.
func servePinned(in *bufio.Reader, out io.Writer) error {
	if err := readTask(in, &pins); err != nil {
		return err
	}
	if err := pins.pinClients(); err != nil {
		return err
	}
	own, err := allowed(os.Getpid())
	if err != nil {
		return err
	}
	f, err := StartFleet(Case{N: 1, Transport: TCP})
	if err != nil {
		return err
	}
	defer f.Close()
	master, err := allowed(f.masters[0].PID(0))
	if err != nil {
		return err
	}
	f.Break(0, Dead)
	if err := f.Heal(0, Dead); err != nil {
		return err
	}
	again, err := allowed(f.masters[0].PID(0))
	if err != nil {
		return err
	}
	c, err := startChild("allowed", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	child, err := c.hear()
	fmt.Fprintln(out, own, master, again, child)
	return err
}

// In a child, as this process is to keep its CPUs.
func TestMastersAndClientsArePinnedApart(t *testing.T) {
	var there unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &there))
	if there.Count() < 2 {
		t.Skip("there is one CPU, and it takes two")
	}
	var cpus []int
	for cpu := 0; len(cpus) < 2; cpu++ {
		if there.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	c, err := startChild("pinned", Pins{Masters: cpus[1:], Clients: cpus[:1]})
	require.NoError(t, err)
	defer c.Close()
	said, err := c.hear()
	require.NoError(t, err)
	client, master := strconv.Itoa(cpus[0]), strconv.Itoa(cpus[1])
	// Itself; a master; the same after a restart; a client's process.
	require.Equal(t, strings.Join([]string{client, master, master, client}, " "), said)
}

// allowed are the CPUs that all threads of a process may use, as the kernel writes them.
func allowed(pid int) (string, error) {
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/status"))
	if err != nil {
		return "", err
	}
	var all []string
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			return "", err
		}
		_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
		list := strings.Fields(rest)[0]
		if len(all) == 0 || all[len(all)-1] != list {
			all = append(all, list)
		}
	}
	return strings.Join(all, " and "), nil
}

func TestTheReportSaysWhatWasPinned(t *testing.T) {
	require.Contains(t, string(Report{}.markdown("")), "Nothing was pinned to CPUs.")
	pins = Pins{Masters: []int{2, 3}, Clients: []int{0}}
	defer func() { pins = Pins{} }()
	require.Contains(t, string(Report{}.markdown("")), "were pinned to CPUs 2-3, and the clients to 0 (`-cpuset masters=2-3,clients=0`)")
}
