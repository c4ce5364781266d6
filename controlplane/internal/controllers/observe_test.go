package controllers

import (
	"testing"

	. "github.com/onsi/gomega"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
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
