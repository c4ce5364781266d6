package webhooks

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

func TestValidateCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		spec bootstrapv1.TalosConfigSpec
		want string // Part of the refusal; empty when allowed.
	}{
		"a worker":        {bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13"}, ""},
		"a control plane": {bootstrapv1.TalosConfigSpec{GenerateType: "controlplane", TalosVersion: "v1.14"}, ""},
		"no generateType": {bootstrapv1.TalosConfigSpec{TalosVersion: "v1.13"}, "spec.generateType: Required value: must be controlplane, worker or none"},
	} {
		t.Run(name, func(t *testing.T) { expectAdmission(t, tc.spec, tc.want) })
	}
}

// expectAdmission creates a TalosConfig and a TalosConfigTemplate of a spec.
func expectAdmission(t *testing.T, spec bootstrapv1.TalosConfigSpec, want ...string) {
	t.Helper()
	g := NewWithT(t)
	_, err := (&TalosConfig{}).ValidateCreate(t.Context(), &bootstrapv1.TalosConfig{Spec: spec})
	for _, part := range want {
		expect(g, err, part)
	}
	template := &bootstrapv1.TalosConfigTemplate{}
	template.Spec.Template.Spec = spec
	_, err = (&TalosConfigTemplate{}).ValidateCreate(t.Context(), template)
	for _, part := range want {
		expect(g, err, strings.ReplaceAll(part, "spec.", "spec.template.spec."))
	}
}

func topologyDryRun() metav1.ObjectMeta {
	return metav1.ObjectMeta{Annotations: map[string]string{clusterv1.TopologyDryRunAnnotation: ""}}
}

func expect(g *WithT, err error, want string) {
	if want == "" {
		g.Expect(err).NotTo(HaveOccurred())
		return
	}
	g.Expect(err).To(MatchError(ContainSubstring(want)))
}
