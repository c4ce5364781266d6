package talossim

import (
	"maps"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/role"
)

// rules tell which roles may call a method: machined's rule map, all of it
// (internal/app/machined/pkg/system/services/machined.go). What is not listed is
// for administrators.
func rules() map[string]role.Set {
	var (
		admins    = role.MakeSet(role.Admin)
		operators = role.MakeSet(role.Admin, role.Operator)
		readers   = role.MakeSet(role.Admin, role.Operator, role.Reader)
	)
	of := map[string]role.Set{}
	permit := func(roles role.Set, service string, methods ...string) {
		for _, method := range methods {
			of[service+method] = roles
		}
	}
	permit(admins, "/cosi.resource.State/", "Create", "Destroy", "Update")
	permit(admins, "/machine.DebugService/", "ContainerRun")
	permit(admins, "/machine.ImageService/", "Import", "Remove")
	permit(admins, "/machine.LifecycleService/", "Install", "Upgrade")
	permit(admins, "/machine.MachineService/",
		"Bootstrap", "Copy", "EtcdDowngradeCancel", "EtcdDowngradeEnable", "EtcdDowngradeValidate",
		"EtcdForfeitLeadership", "EtcdLeaveCluster", "EtcdRecover", "EtcdRemoveMemberByID",
		"GenerateClientConfiguration", "Kubeconfig", "Read", "Reset", "Rollback", "Upgrade",
	)
	permit(role.MakeSet(role.Admin, role.MetaWriter), "/machine.MachineService/", "MetaDelete", "MetaWrite")
	permit(operators, "/machine.ImageService/", "Pull")
	permit(operators, "/machine.MachineService/",
		"EtcdAlarmDisarm", "EtcdDefragment", "ImagePull", "PacketCapture", "Reboot", "Restart", "ServiceRestart",
		"ServiceStart", "ServiceStop", "Shutdown",
	)
	// A reader may only in maintenance mode: the handlers look.
	permit(role.MakeSet(role.Admin, role.Reader), "/machine.MachineService/", "ApplyConfiguration")
	permit(role.MakeSet(role.Admin, role.Reader), "/storage.StorageService/", "BlockDeviceWipe")
	permit(role.MakeSet(role.Admin, role.Operator, role.EtcdBackup), "/machine.MachineService/", "EtcdSnapshot")
	permit(readers, "/cluster.ClusterService/", "HealthCheck")
	permit(readers, "/cosi.resource.State/", "Get", "List", "Watch")
	permit(readers, "/inspect.InspectService/", "ControllerRuntimeDependencies")
	permit(readers, "/machine.ImageService/", "List")
	permit(readers, "/machine.MachineService/",
		"CPUFreqStats", "CPUInfo", "Containers", "DiskStats", "DiskUsage", "Dmesg", "Events", "Hostname",
		"ImageList", "List", "LoadAvg", "Logs", "LogsContainers", "Memory", "Mounts", "Netstat",
		"NetworkDeviceStats", "Processes", "ServiceList", "Stats", "SystemStat", "Version",
	)
	permit(readers, "/storage.StorageService/", "Disks")
	permit(readers, "/time.TimeService/", "Time", "TimeCheck")
	permit(role.MakeSet(role.Admin, role.Operator, role.Reader, role.EtcdBackup), "/machine.MachineService/", "EtcdAlarmList", "EtcdMemberList", "EtcdStatus")
	permit(role.MakeSet(role.Admin, role.Operator, role.Reader, role.ImageVerifier), "/machine.ImageService/", "Verify")
	return of
}

// Methods are all methods of machined's rule map, sorted.
func Methods() []string {
	return slices.Sorted(maps.Keys(rules()))
}
