package controllers

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/rollout"
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

// TestALongDecisionIsAnEvent: the API server refuses an event whose note has more than
// 1024 bytes, and five Machines have much that can be wrong.
func TestALongDecisionIsAnEvent(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	s := &scope{cluster: newCluster(), controlPlane: newControlPlane()}
	s.decision = rollout.Decision{Action: rollout.WaitForPreflight, Message: strings.Repeat("ä", 1000)}

	w.manager().observe(s)

	var event string
	g.Expect(w.events.Events).To(Receive(&event))
	note := strings.TrimPrefix(event, "Normal WaitForPreflight ")
	g.Expect(len(note)).To(And(BeNumerically("<=", 1024), BeNumerically(">", 1000)))
	g.Expect(note).To(HavePrefix("ää"))
	g.Expect(note).To(HaveSuffix("ä..."))
}
