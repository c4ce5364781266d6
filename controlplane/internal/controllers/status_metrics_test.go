package controllers

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// TestNoQuorumIsLostBeforeThereWasOne: a negative margin wakes people.
func TestNoQuorumIsLostBeforeThereWasOne(t *testing.T) {
	for name, tc := range map[string]struct {
		intent string
		lost   bool
	}{
		"nothing has begun":         {"", false},
		"etcd is to be made":        {`{"name":"a"}`, false},
		"etcd has run":              {`{"name":"a","bootstrapped":true}`, true},
		"the API server has served": {`{"name":"a","bootstrapped":true,"initialized":true}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := &scope{cluster: newCluster(), controlPlane: newControlPlane()}
			if tc.intent != "" {
				s.controlPlane.Annotations = map[string]string{controlplanev1.BootstrapIntentAnnotation: tc.intent}
			}
			margin := shownEtcd(s).QuorumMargin
			if tc.lost {
				g.Expect(margin).To(HaveValue(Equal(-1)))
			} else {
				g.Expect(margin).To(BeNil())
			}
		})
	}
}

// TestEachDecisionIsShown: what a pass decides is counted, and is an event, once for as
// long as it stays.
func TestEachDecisionIsShown(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	r.Metrics = metrics.New()
	registry := prometheus.NewRegistry()
	g.Expect(r.Metrics.Register(registry)).To(Succeed())
	w.settle(r)
	w.scale(3)
	w.until(r, w.has(3))
	w.settle(r)

	counted := map[string]int{}
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != "capi_talos_control_plane_decisions_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "action" {
					counted[label.GetValue()] = int(metric.GetCounter().GetValue())
				}
			}
		}
	}
	told := map[string]int{}
	for _, event := range w.recorded() {
		if kind, rest, _ := strings.Cut(event, " "); kind == "Normal" {
			reason, _, _ := strings.Cut(rest, " ")
			told[reason]++
		}
	}
	for _, action := range []plan.Action{
		plan.CreateMachine, plan.RecordBootstrapIntent, plan.Bootstrap, plan.RecordInitialized, plan.HandOver,
	} {
		g.Expect(counted).To(HaveKeyWithValue(string(action), BeNumerically(">", 0)))
		g.Expect(told).To(HaveKeyWithValue(string(action), counted[string(action)]), string(action))
	}
	g.Expect(counted).To(HaveKeyWithValue(string(plan.RecordBootstrapIntent), 1))
}
