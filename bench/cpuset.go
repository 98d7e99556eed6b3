package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Pins are the CPUs of the masters, and those of the clients: the benchmark's own process and the ones that
// compete for locks. Then neither takes the time of the other. The zero value pins nothing.
type Pins struct {
	Masters, Clients []int
}

// pins are those of this run; only main changes them.
var pins Pins

func (p Pins) none() bool { return len(p.Masters) == 0 }

func (p Pins) String() string {
	if p.none() {
		return ""
	}
	return "masters=" + listed(p.Masters) + ",clients=" + listed(p.Clients)
}

// Set reads masters=2-5,7,clients=0-1. The sets must be apart, and of CPUs that this process may use.
func (p *Pins) Set(text string) error {
	var there unix.CPUSet
	if err := unix.SchedGetaffinity(0, &there); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	var usable []int
	for cpu := range len(there) * strconv.IntSize {
		if there.IsSet(cpu) {
			usable = append(usable, cpu)
		}
	}
	read, err := parsePins(text, usable)
	if err == nil {
		*p = read
	}
	return err
}

// parsePins reads the text on a machine with these CPUs.
func parsePins(text string, usable []int) (p Pins, err error) {
	owner := map[int]string{}
	for _, cpu := range usable {
		owner[cpu] = ""
	}
	var who string
	for part := range strings.SplitSeq(text, ",") {
		if name, rest, ok := strings.Cut(part, "="); ok {
			who, part = name, rest
		}
		if who != "masters" && who != "clients" {
			return p, fmt.Errorf("%q is not of the form masters=2-5,clients=0-1", text)
		}
		first, last, _ := strings.Cut(part, "-")
		if last == "" {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || to < from {
			return p, fmt.Errorf("%q is neither a CPU nor a range of CPUs, such as 2-5", part)
		}
		for cpu := int(from); cpu <= int(to); cpu++ {
			switch of, there := owner[cpu]; {
			case !there:
				return p, fmt.Errorf("CPU %d is not there, or this process may not use it; there are %s", cpu, listed(usable))
			case of != "" && of != who:
				return p, fmt.Errorf("CPU %d is for both masters and clients", cpu)
			case of == who:
				continue
			}
			owner[cpu] = who
			if who == "masters" {
				p.Masters = append(p.Masters, cpu)
			} else {
				p.Clients = append(p.Clients, cpu)
			}
		}
	}
	if len(p.Masters) == 0 || len(p.Clients) == 0 {
		return Pins{}, errors.New("both masters and clients need CPUs, as in masters=2-5,clients=0-1")
	}
	return p, nil
}

// listed is the CPUs as taskset(1) writes them: 0,2-5.
func listed(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i + 1
		for j < len(cpus) && cpus[j] == cpus[j-1]+1 {
			j++
		}
		if part := strconv.Itoa(cpus[i]); j == i+1 {
			parts = append(parts, part)
		} else {
			parts = append(parts, part+"-"+strconv.Itoa(cpus[j-1]))
		}
		i = j
	}
	return strings.Join(parts, ",")
}

// pinClients pins this process. Processes that it starts inherit that.
func (p Pins) pinClients() error {
	if p.none() {
		return nil
	}
	err := pin(os.Getpid(), p.Clients)
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS() // as many as the process may use now
	}
	return err
}

// pinMaster pins a server that has been started.
func (p Pins) pinMaster(pid int) error {
	if p.none() {
		return nil
	}
	return pin(pid, p.Masters)
}

// pin pins all threads of a process. A new thread inherits the CPUs of the one that starts it, so this ends
// when it finds no more threads that are not pinned.
func pin(pid int, cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	pinned := map[string]bool{}
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
		if err != nil {
			return fmt.Errorf("pin process %d: %w", pid, err)
		}
		for _, task := range tasks {
			if pinned[task.Name()] {
				continue
			}
			pinned[task.Name()], again = true, true
			tid, err := strconv.Atoi(task.Name())
			if err == nil {
				err = os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(tid, &set))
			}
			if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrNotExist) { // it may have ended
				return fmt.Errorf("pin process %d: %w", pid, err)
			}
		}
	}
	return nil
}
