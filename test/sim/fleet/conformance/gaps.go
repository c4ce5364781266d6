package conformance

import (
	"fmt"
	"strings"
)

// Gaps are the methods that talossim answers with Unimplemented to those who may
// call them, and why.
func Gaps() map[string]string {
	const (
		unused  = "none of our providers calls it"
		backups = "it comes with backups"
		change  = "it comes with changing nodes in place"
	)
	of := map[string]string{
		"/cluster.ClusterService/HealthCheck":                   unused,
		"/inspect.InspectService/ControllerRuntimeDependencies": unused,
		"/machine.DebugService/ContainerRun":                    unused,
		"/machine.LifecycleService/Install":                     change,
		"/machine.LifecycleService/Upgrade":                     change,
		"/storage.StorageService/BlockDeviceWipe":               unused,
		"/storage.StorageService/Disks":                         unused,
		"/time.TimeService/Time":                                unused,
		"/time.TimeService/TimeCheck":                           unused,
	}
	for _, method := range []string{"Import", "List", "Pull", "Remove", "Verify"} {
		of["/machine.ImageService/"+method] = change
	}
	for _, method := range []string{"EtcdAlarmDisarm", "EtcdDefragment"} {
		of["/machine.MachineService/"+method] = backups
	}
	for _, method := range []string{
		"CPUFreqStats", "CPUInfo", "Containers", "Copy", "DiskStats", "DiskUsage", "Dmesg", "EtcdDowngradeCancel", "EtcdDowngradeEnable",
		"EtcdDowngradeValidate", "Events", "GenerateClientConfiguration", "Hostname", "ImageList", "ImagePull", "Kubeconfig", "LoadAvg",
		"Logs", "LogsContainers", "Memory", "Mounts", "Netstat", "NetworkDeviceStats", "PacketCapture", "Processes", "Read", "Restart",
		"ServiceRestart", "ServiceStart", "ServiceStop", "Stats", "SystemStat",
	} {
		of["/machine.MachineService/"+method] = unused
	}
	return of
}

// Judge compares what talossim answers with what was kept of a real node. Where
// talossim has a gap it must say so, to those whom a real node would answer.
func Judge(got, kept Record) (differences []string, gapped int) {
	known := Gaps()
	for _, row := range sortedKeys(got.Answers, kept.Answers) {
		method, _, _ := strings.Cut(row, " ")
		reason, gap := known[method]
		for caller, answer := range got.Answers[row] {
			refused := strings.HasPrefix(kept.Answers[row][caller], "PermissionDenied")
			if !gap || refused || kept.Answers[row][caller] == "" {
				continue
			}
			gapped++
			if !strings.HasPrefix(answer, "Unimplemented") {
				differences = append(differences, fmt.Sprintf("%s as %s: it is a gap (%s), but got %q", row, caller, reason, answer))
			}
			got.Answers[row][caller] = kept.Answers[row][caller]
		}
	}
	return append(differences, Differences(got, kept)...), gapped
}
