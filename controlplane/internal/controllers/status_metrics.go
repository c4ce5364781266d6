package controllers

import (
	"sync"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// lastDecisions remembers what was decided last about each control plane, so that
// people are told once.
type lastDecisions struct {
	mu   sync.Mutex
	last map[client.ObjectKey]plan.Decision
}

func newLastDecisions() *lastDecisions {
	return &lastDecisions{last: map[client.ObjectKey]plan.Decision{}}
}

// changed reports whether a decision is another one than before.
func (d *lastDecisions) changed(controlPlane client.ObjectKey, decision plan.Decision) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.last[controlPlane]
	d.last[controlPlane] = decision

	return before.Action != decision.Action || before.Machine != decision.Machine || before.MemberID != decision.MemberID
}

func (d *lastDecisions) forget(controlPlane client.ObjectKey) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.last, controlPlane)
}

// observe shows what was found and decided: in metrics, and as an event when the
// decision is another one than before.
func (r *Reconciler) observe(s *scope) {
	r.Metrics.SetEtcd(s.shown(), shownEtcd(s))
	counts := map[string]int{"wanted": int(s.facts.Replicas), "present": len(s.machines), "up_to_date": r.upToDate(s), "deleting": 0}
	for _, machine := range s.machines {
		if !machine.DeletionTimestamp.IsZero() {
			counts["deleting"]++
		}
	}
	r.Metrics.SetMachines(s.shown(), counts)
	if !r.decisions.changed(client.ObjectKeyFromObject(s.controlPlane), s.decision) {
		return
	}
	r.Metrics.CountDecision(s.shown(), string(s.decision.Action))
	if s.decision.Message != "" {
		r.event(s, normal, string(s.decision.Action), "Decide", "%s", s.decision.Message)
	}
}

// shown names the control plane in metrics.
func (s *scope) shown() metrics.ControlPlane {
	return metrics.ControlPlane{Key: client.ObjectKeyFromObject(s.controlPlane), Cluster: s.cluster.Name}
}

func shownEtcd(s *scope) metrics.Etcd {
	judged := s.facts.Etcd
	voters := judged.Voters()
	found := metrics.Etcd{
		Answering: len(judged.Answering), Silent: voters - len(judged.Answering), Learners: len(judged.Members) - voters,
		Alarms: map[string]int{}, DatabaseSizes: map[string]int64{}, DatabaseQuotas: map[string]int64{},
	}
	// Before that there is no quorum that could be lost: nobody is to be woken.
	if intent := s.intent(); s.initialized() || (intent != nil && intent.Bootstrapped) {
		found.QuorumMargin = ptr.To(len(judged.Answering) - etcd.Majority(voters))
	}
	for _, alarm := range judged.Alarms {
		found.Alarms[alarm.Alarm]++
	}
	for _, machine := range s.machines {
		view := s.nodes[machine.Name].Etcd
		if view == nil {
			continue
		}
		found.DatabaseSizes[machine.Name] = view.DBSizeBytes
		if view.DBQuotaBytes > 0 {
			found.DatabaseQuotas[machine.Name] = view.DBQuotaBytes
		}
	}

	return found
}
