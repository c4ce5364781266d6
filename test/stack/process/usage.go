package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is what a process has taken of the machine so far.
type Usage struct {
	// ResidentMiB is the memory that is resident, PeakMiB the most that ever was.
	ResidentMiB, PeakMiB float64
	// FileMiB is what of ResidentMiB are pages of files, which is the program's
	// code and its tables: the kernel takes them away when memory is short.
	FileMiB float64
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

// MachineCPUSeconds is the time that the processors of this machine have worked so far: all but
// idle, iowait and steal of proc_stat(5).
func MachineCPUSeconds() (float64, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the processor time of this machine: %w", err)
	}
	var user, nice, system, idle, wait, irq, softIRQ float64
	if _, err := fmt.Sscanf(string(stat), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait, &irq, &softIRQ); err != nil {
		return 0, fmt.Errorf("reading the processor time of this machine: %w", err)
	}
	return (user + nice + system + irq + softIRQ) / ticksPerSecond, nil
}

func parseUsage(status, stat string) (Usage, error) {
	var usage Usage
	for name, into := range map[string]*float64{"VmRSS:": &usage.ResidentMiB, "VmHWM:": &usage.PeakMiB, "RssFile:": &usage.FileMiB} {
		_, rest, found := strings.Cut(status, name)
		if !found {
			return usage, fmt.Errorf("no %s in %q", name, status)
		}
		if _, err := fmt.Sscanf(rest, "%f kB", into); err != nil {
			return usage, fmt.Errorf("reading %s %q: %w", name, rest, err)
		}
		const kibiPerMebi = 1024
		*into /= kibiPerMebi
	}
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
