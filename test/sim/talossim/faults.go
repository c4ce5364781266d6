package talossim

import (
	"io"
	"time"
)

// Faults are what is wrong with a machine. The zero value is a good one.
type Faults struct {
	// Silent makes the Talos API swallow everything without an answer, as when
	// packets are dropped. What runs on the machine goes on, and its API server
	// answers: the machine is parted from who manages it, not from its cluster.
	Silent bool
	// Refusing makes the Talos API refuse connections, and breaks those that are
	// open.
	Refusing bool
	// Slow delays every call of the Talos API.
	Slow time.Duration
	// ClockAhead is how far the clock of the machine is ahead of ours; behind, when
	// negative. By it the Talos API judges client certificates, and its own, which
	// is made anew when the clock is set, begins.
	ClockAhead time.Duration
	// NoTime keeps the machine from setting its clock, as when no time server answers. A
	// clock that is set stays so until the next boot, and a container has that of its host.
	NoTime bool
	// BrokenDisk makes the installation fail: the machine boots into maintenance
	// mode again. A container forgets the configuration and boots.
	BrokenDisk bool
	// RefusesConfiguration makes it refuse every configuration in these words.
	RefusesConfiguration string
	// StuckBooting keeps it in stage booting, with its services not up.
	StuckBooting bool
	// DeadAPIServer ends the API server of the machine, and keeps it from being
	// started. Etcd runs on.
	DeadAPIServer bool
	// DeadKubelet makes the kubelet hang. Static Pods that run go on, and Talos
	// tells of them what it heard last; none is started. The node is not ready.
	DeadKubelet bool
	// Gone takes the power away for as long as it is set. What is on the disk
	// stays. Whoever calls the machine gets no answer, and the other members of
	// etcd do not notice that it is gone.
	Gone bool
	// DeadEtcd stops etcd, and with it the API server of the machine. The data
	// stays.
	DeadEtcd bool
	// StoppingEtcd makes the etcd that its Talos asks for another membership answer that it
	// is ending, and change nothing.
	StoppingEtcd bool
	// SpoiltEtcd is DeadEtcd until the data is wiped: no etcd starts on it.
	SpoiltEtcd bool
	// Parted cuts the machine off from all other machines, and from the endpoint of
	// its cluster, as when a switch fails; who manages it still reaches its Talos
	// API. Its etcd runs on without a leader, its API server ends, and its node is
	// not ready. The other members of etcd do not notice that it is gone.
	Parted bool
	// KeepsData makes it ignore what a reset asks it to wipe.
	KeepsData bool
	// BusyPartition makes a reset of partitions fail once it has wiped them, as when the
	// kernel does not let one of them go.
	BusyPartition bool
	// OtherMachine makes it tell another identity, from its next boot on.
	OtherMachine bool
	// LateBootstrap makes a bootstrap meet the first data of etcd after it has stopped
	// it: the call fails, and etcd stays down until the next boot, with its data.
	LateBootstrap bool
	// RecoverFails makes it fail to restore the database that was sent: the bootstrap is
	// accepted, and then etcd fails. The database stays, and there is no data.
	RecoverFails bool
	// Alarm is an alarm that its etcd raises once it can: "NOSPACE", with which the
	// Kubernetes of the whole cluster refuses writes, or "CORRUPT". It is disarmed
	// when the fault goes, also of a member that is out by then.
	Alarm string
	// DatabaseBytes is what the database of its etcd takes; 0 is a small one.
	DatabaseBytes int64
	// SnapshotBytes is how large a snapshot of its etcd is; 0 is a small one.
	SnapshotBytes int64
	// Snapshot opens what it gives as a snapshot instead; nil means nothing else.
	Snapshot func() (io.ReadCloser, error)
	// SnapshotEnds ends a snapshot after so many bytes as if it were complete, as Talos
	// does when it cannot read on; 0 does not.
	SnapshotEnds int64
	// SnapshotHangs sends the first part of a snapshot, and nothing more.
	SnapshotHangs bool
}

// Break changes what is wrong with the machine.
func (m *Machine) Break(faults Faults) {
	var present *boot
	m.sim.update(func() {
		healed, leaves := m.faults.Parted && !faults.Parted, faults.Gone && !m.faults.Gone
		m.faults = faults
		present = m.present
		if leaves && present != nil {
			m.sim.etcd.Silence(m.spec.Name)
			present.give(order{now: true})
		}
		switch {
		case m.etcd != etcdRunning || faults.Gone:
		case faults.Parted:
			m.sim.etcd.Silence(m.spec.Name)
		case healed:
			// A member that was removed meanwhile learns of it now.
			_ = m.sim.etcd.Start(m.spec.Name, m.disk.settings.hostname)
		}
	})
	if present != nil {
		present.gate.set(faults.Silent, faults.Refusing)
	}
}

// Faults are what is wrong with the machine now.
func (m *Machine) Faults() Faults {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.faults
}
