package talossim

import (
	"slices"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// raised is an alarm of the machine's etcd, and what is needed to disarm it when
// the machine has nothing of that etcd any more.
type raised struct {
	alarm        etcdmodel.Alarm
	group        string
	cluster      *etcdmodel.Cluster
	kubernetesCA []byte
}

// settleAlarms raises and disarms what can be raised and disarmed by now. The lock
// is held.
func (s *Sim) settleAlarms() {
	for _, m := range s.machines {
		switch {
		case m.raised == nil && m.faults.Alarm != "":
			m.raise()
		case m.raised != nil && m.faults.Alarm != m.raised.alarm.Kind:
			m.disarm()
		}
		if m.raised != nil {
			s.fill(m.raised)
		}
	}
}

// Alarmed reports whether the alarm of the machine's faults is raised: it is only once
// its etcd runs.
func (m *Machine) Alarmed() bool {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	return m.raised != nil
}

// raise raises the alarm of the machine, if its etcd can.
func (m *Machine) raise() {
	data, found := m.sim.etcd.Data(m.spec.Name)
	if !found || m.etcd != etcdRunning || m.faults.Parted || m.disk.settings == nil {
		return
	}
	alarm := etcdmodel.Alarm{Member: data.ID, Kind: m.faults.Alarm}
	if data.Cluster.Raise(alarm) == nil {
		m.raised = &raised{alarm: alarm, group: data.Group, cluster: data.Cluster, kubernetesCA: m.disk.settings.kubernetesCA.Crt}
	}
}

// disarm disarms it, unless its cluster is no more.
func (m *Machine) disarm() {
	was := m.raised
	if was.cluster.Disarm(was.alarm.Member) != nil && m.sim.etcd.HasData(was.group) {
		return
	}
	m.raised = nil
	m.sim.fill(was)
}

// fill tells Kubernetes whether its etcd takes writes.
func (s *Sim) fill(of *raised) {
	s.options.Clusters.Fill(of.kubernetesCA, slices.ContainsFunc(of.cluster.Alarms(), func(alarm etcdmodel.Alarm) bool {
		return alarm.Kind == etcdmodel.NoSpace
	}))
}
