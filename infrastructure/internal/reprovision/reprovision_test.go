package reprovision

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const providerID = "talos://1"

func machine(changes ...func(*infrav1.TalosMachine)) *infrav1.TalosMachine {
	made := &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{infrav1.TalosMachineFinalizer}}}
	for _, change := range changes {
		change(made)
	}

	return made
}

func wanted(value string) func(*infrav1.TalosMachine) {
	return func(m *infrav1.TalosMachine) { m.Annotations = map[string]string{infrav1.ReprovisionAnnotation: value} }
}

func host(changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	made := &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Name: "h1", Finalizers: []string{infrav1.TalosHostFinalizer}}}
	for _, change := range changes {
		change(made)
	}

	return made
}

func handedOver(progress infrav1.HandoverProgress) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) {
		h.Spec.Handover = infrav1.HostHandover{ProviderID: providerID, Progress: progress}
	}
}

func underWay(cluster string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) {
		h.Spec.Reprovision = infrav1.HostReprovision{ClusterName: cluster, Previous: infrav1.HostHandover{ProviderID: providerID, Progress: infrav1.HandoverRan}}
	}
}

func releasing(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem }

func TestNext(t *testing.T) {
	started, ran := handedOver(infrav1.HandoverStarted), handedOver(infrav1.HandoverRan)
	tests := map[string]struct {
		machine *infrav1.TalosMachine
		host    *infrav1.TalosHost
		want    Step
	}{
		"nobody asks for it":                                    {machine(), host(ran), None},
		"a machine without configuration needs no wipe":         {machine(wanted("")), host(), Needless},
		"a machine that runs is wiped":                          {machine(wanted("")), host(ran), Begin},
		"a machine that never came up is wiped":                 {machine(wanted("")), host(started), Begin},
		"the proof of the wipe is awaited":                      {machine(wanted("")), host(ran, underWay("one"), releasing), AwaitWipe},
		"it is awaited also when the annotation is taken away":  {machine(), host(ran, underWay("one"), releasing), AwaitWipe},
		"a wiped machine is configured":                         {machine(wanted("")), host(underWay("one")), HandOver},
		"a wiped machine is configured without the annotation":  {machine(), host(underWay("one")), HandOver},
		"a machine that was configured is followed":             {machine(wanted("")), host(started, underWay("one")), HandOver},
		"a machine that runs again is done":                     {machine(wanted("")), host(ran, underWay("one")), Finish},
		"a machine whose annotation is used up is done as well": {machine(), host(ran, underWay("one")), Finish},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Next(tt.machine, tt.host)).To(Equal(tt.want))
		})
	}
}

func TestRefuse(t *testing.T) {
	other := func(changes ...func(*infrav1.TalosHost)) infrav1.TalosHost {
		return *host(append(changes, func(h *infrav1.TalosHost) { h.Name = "h2" })...)
	}
	moved := map[string]string{infrav1.DeleteForMoveAnnotation: "", infrav1.ReprovisionAnnotation: ""}
	tests := map[string]struct {
		machine *infrav1.TalosMachine
		host    *infrav1.TalosHost
		noData  bool
		forAll  bool
		others  []infrav1.TalosHost
		want    string
	}{
		"nothing speaks against it":                   {},
		"others run":                                  {others: []infrav1.TalosHost{other(handedOver(infrav1.HandoverRan))}},
		"another one is given back":                   {others: []infrav1.TalosHost{other(handedOver(infrav1.HandoverRan), releasing)}},
		"another one of another Cluster":              {others: []infrav1.TalosHost{other(underWay("two"))}},
		"another one is being wiped":                  {others: []infrav1.TalosHost{other(underWay("one"), releasing)}, want: infrav1.ReprovisioningBlockedReason},
		"another one is configured again":             {others: []infrav1.TalosHost{other(underWay("one"))}, want: infrav1.ReprovisioningBlockedReason},
		"an unknown value does not override":          {machine: machine(wanted("force")), others: []infrav1.TalosHost{other(underWay("one"))}, want: infrav1.ReprovisioningBlockedReason},
		"a person overrides":                          {machine: machine(wanted(infrav1.ReprovisionDespiteOthers)), others: []infrav1.TalosHost{other(underWay("one"))}},
		"the annotation comes from a template":        {forAll: true, want: infrav1.ReprovisionFromTemplateReason},
		"the configuration is missing":                {noData: true, want: infrav1.ReprovisionDataMissingReason},
		"a person cannot override what is missing":    {machine: machine(wanted(infrav1.ReprovisionDespiteOthers)), noData: true, want: infrav1.ReprovisionDataMissingReason},
		"the TalosMachine is being deleted":           {machine: machine(func(m *infrav1.TalosMachine) { m.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }), want: infrav1.ReprovisionGoingReason},
		"the TalosMachine does not carry a finalizer": {machine: machine(func(m *infrav1.TalosMachine) { m.Finalizers = nil }), want: infrav1.ReprovisionGoingReason},
		"the TalosMachine was moved":                  {machine: machine(func(m *infrav1.TalosMachine) { m.Annotations = moved }), want: infrav1.ReprovisionGoingReason},
		"the host is being deleted":                   {host: host(func(h *infrav1.TalosHost) { h.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) }), want: infrav1.ReprovisionGoingReason},
		"the host does not carry a finalizer":         {host: host(func(h *infrav1.TalosHost) { h.Finalizers = nil }), want: infrav1.ReprovisionGoingReason},
		"the host was moved":                          {host: host(func(h *infrav1.TalosHost) { h.Annotations = moved }), want: infrav1.ReprovisionGoingReason},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			facts := Facts{Machine: tt.machine, Host: tt.host, HasData: !tt.noData, FromTemplate: tt.forAll, Cluster: "one"}
			if facts.Machine == nil {
				facts.Machine = machine(wanted(""))
			}
			if facts.Host == nil {
				facts.Host = host(handedOver(infrav1.HandoverRan))
			}
			facts.Hosts = append([]infrav1.TalosHost{*facts.Host}, tt.others...)
			got := Refuse(facts)
			g.Expect(got.Reason).To(Equal(tt.want))
			g.Expect(got.Message != "").To(Equal(tt.want != ""))
		})
	}
}
