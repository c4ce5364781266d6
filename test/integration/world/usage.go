package world

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Usage is what a process has taken of the machine so far.
type Usage struct {
	// PeakMiB is the most memory that was resident at a time.
	PeakMiB float64
	// CPUSeconds is the time on all processors, in user and kernel mode.
	CPUSeconds float64
}

// ticksPerSecond is the unit of times in /proc, the same on all of Linux'
// architectures.
const ticksPerSecond = 100

// UsageOf asks the kernel about a process.
func UsageOf(pid int) (Usage, error) {
	folder := "/proc/" + strconv.Itoa(pid)
	status, err := os.ReadFile(folder + "/status")
	if err != nil {
		return Usage{}, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(folder + "/stat")
	if err != nil {
		return Usage{}, fmt.Errorf("reading the processor time of process %d: %w", pid, err)
	}
	usage, err := parseUsage(string(status), string(stat))
	if err != nil {
		return Usage{}, fmt.Errorf("reading the usage of process %d: %w", pid, err)
	}
	return usage, nil
}

func parseUsage(status, stat string) (Usage, error) {
	var usage Usage
	lines := strings.Split(status, "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "VmHWM:") })
	if at < 0 {
		return usage, fmt.Errorf("no peak of memory in %q", status)
	}
	const kibiPerMebi = 1024
	if _, err := fmt.Sscanf(strings.TrimPrefix(lines[at], "VmHWM:"), "%f kB", &usage.PeakMiB); err != nil {
		return usage, fmt.Errorf("reading %q: %w", lines[at], err)
	}
	usage.PeakMiB /= kibiPerMebi
	// The second field is the program's name in brackets, and may hold brackets and
	// spaces itself. utime and stime are the fields 14 and 15.
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	const user, system = 14 - 3, 15 - 3
	if len(fields) <= system {
		return usage, fmt.Errorf("no times in %q", stat)
	}
	for _, field := range []int{user, system} {
		ticks, err := strconv.ParseFloat(fields[field], 64)
		if err != nil {
			return usage, fmt.Errorf("reading a time: %w", err)
		}
		usage.CPUSeconds += ticks / ticksPerSecond
	}
	return usage, nil
}
