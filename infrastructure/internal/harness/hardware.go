package harness

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// AddMachine puts a bare metal machine in maintenance mode at an address. It
// installs and wipes itself as it is told, in no time.
func (w *Environment) AddMachine(address string) *BareMetal {
	w.T.Helper()
	number := address[len(address)-1:]
	metal := &BareMetal{Environment: w, Address: address}
	metal.Machine = talosfake.NewMachine(talosfake.State{
		Version: "v1.13.9",
		Hardware: talosclient.Hardware{
			Platform: "metal", Mode: "metal", Architecture: "amd64", CPUs: 8, MemoryBytes: 16 << 30,
			SystemUUID: "4c4c4544-0042-3510-8053-b4c04f4d4e0" + number,
			Disks:      []talosclient.Disk{{DevPath: "/dev/vda", SizeBytes: 20e9}},
			Links:      []talosclient.Link{{Name: "eno1", HardwareAddress: "b0:26:28:00:00:0" + number}},
		},
		Addresses: []string{address}, Hostname: "node-" + number,
	})
	metal.OnApply = func(_ *talosfake.Machine, configuration []byte) error {
		metal.Install(configuration)
		metal.Boot(false, Bundle(w.T).TalosCA())
		return nil
	}
	metal.OnReset = func(_ *talosfake.Machine, options talosclient.ResetOptions) error {
		if len(options.SystemLabels) == 0 {
			return fmt.Errorf("the whole disk of %s would be wiped", address)
		}
		metal.Boot(!metal.KeepsData, Bundle(w.T).TalosCA())
		return nil
	}
	metal.Boot(true, nil)
	w.Dialer.Add(address, metal.Machine)

	return metal
}

// BareMetal is a machine that counts its boots.
type BareMetal struct {
	*talosfake.Machine
	Environment *Environment
	Address     string
	boots       int
	KeepsData   bool
	silent      bool
}

// SetSilent makes the machine silent, or answer again. Watches break.
func (b *BareMetal) SetSilent(silent bool) {
	b.silent = silent
	b.Machine.SetSilent(silent)
	if !silent {
		return
	}
	NewWithT(b.Environment.T).Eventually(func() int {
		b.Environment.countMu.Lock()
		defer b.Environment.countMu.Unlock()
		return b.Environment.watched[b.Address]
	}).WithTimeout(10*time.Second).WithPolling(time.Millisecond).Should(BeZero(), "a watch does not end")
}

// BreakWatches is what a reboot does to connections.
func (b *BareMetal) BreakWatches() {
	if !b.silent {
		b.SetSilent(true)
		b.SetSilent(false)
	}
}

// Boot starts the machine, blank or with its configuration. Its certificate is
// another one then.
func (b *BareMetal) Boot(blank bool, ca []byte) {
	b.boots++
	defer b.BreakWatches()
	b.Update(func(state *talosfake.State) {
		state.Maintenance, state.CA = blank, ca
		state.Fingerprint = "boot-" + strconv.Itoa(b.boots)
		state.Status = talosclient.MachineStatus{Stage: talosclient.StageMaintenance}
		state.Volumes = []talosclient.Volume{{ID: "META", Location: "/dev/vda4", ParentLocation: "/dev/vda", PartitionIndex: 4, Filesystem: "talosmeta"}}
		if !blank {
			state.Status = talosclient.MachineStatus{Stage: talosclient.StageRunning, Ready: true}
			state.Volumes = append(state.Volumes,
				talosclient.Volume{ID: "STATE", Location: "/dev/vda5", Filesystem: "xfs"},
				talosclient.Volume{ID: "EPHEMERAL", Location: "/dev/vda6", Filesystem: "xfs"})
		}
	})
}

var installerTag = regexp.MustCompile(`image: \S*installer\S*:(v[0-9]+\.[0-9]+\.[0-9]+)\n`)

// Install is what Talos does with the installer image of its configuration: nothing
// where it is installed already.
func (b *BareMetal) Install(configuration []byte) {
	b.Update(func(state *talosfake.State) {
		if found := installerTag.FindSubmatch(configuration); found != nil && !state.Hardware.Installed {
			state.Version = string(found[1])
		}
		state.Hardware.Installed = true
	})
}

// Leaves makes the machine come back from a reset with more on its disks.
func (b *BareMetal) Leaves(more ...talosclient.Volume) {
	wipes := b.OnReset
	b.OnReset = func(machine *talosfake.Machine, options talosclient.ResetOptions) error {
		err := wipes(machine, options)
		b.Update(func(s *talosfake.State) { s.Volumes = append(s.Volumes, more...) })
		return err
	}
}
