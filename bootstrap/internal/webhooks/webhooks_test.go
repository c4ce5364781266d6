package webhooks

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// trials keeps made-up keys for all tests of this package.
var trials = &configgen.Trials{}

func TestValidateCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		spec bootstrapv1.TalosConfigSpec
		want string // Part of the refusal; empty when allowed.
	}{
		"a worker":          {bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13"}, ""},
		"a control plane":   {bootstrapv1.TalosConfigSpec{GenerateType: "controlplane", TalosVersion: "v1.14"}, ""},
		"no generateType":   {bootstrapv1.TalosConfigSpec{TalosVersion: "v1.13"}, "spec.generateType: Required value: must be controlplane, worker or none"},
		"data that is none": {bootstrapv1.TalosConfigSpec{GenerateType: "none", TalosVersion: "v1.13", Data: "a: b"}, "spec.data: Invalid value: the machine configuration is not valid"},
		"a patch of an unknown field": {
			bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13", StrategicPatches: []string{"machine: {sysctls: {a: b}}", "machine: {colour: red}"}},
			"spec.strategicPatches[1]: Invalid value: strategicPatches[1] line 1 does not apply: "},
		"a JSON patch of a missing path": {
			bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13", ConfigPatches: []bootstrapv1.ConfigPatch{
				{Op: "replace", Path: "/machine/none", Value: &apiextensionsv1.JSON{Raw: []byte(`1`)}}}},
			"spec.configPatches[0]: Invalid value: configPatches[0] (path /machine/none)"},
		"a patch of a control plane's host name": {
			bootstrapv1.TalosConfigSpec{GenerateType: "controlplane", TalosVersion: "v1.13", StrategicPatches: []string{"machine: {network: {hostname: a}}"}},
			"remove it from the patch"},
		"a patch of a worker's host name": {
			bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13", StrategicPatches: []string{"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\nauto: off"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := (&TalosConfig{Trials: trials}).ValidateCreate(t.Context(), &bootstrapv1.TalosConfig{Spec: tc.spec})
			expect(g, err, tc.want)
			template := &bootstrapv1.TalosConfigTemplate{}
			template.Spec.Template.Spec = tc.spec
			_, err = (&TalosConfigTemplate{Trials: trials}).ValidateCreate(t.Context(), template)
			expect(g, err, strings.ReplaceAll(tc.want, "spec.", "spec.template.spec."))
		})
	}
}

func TestValidateUpdate(t *testing.T) {
	before := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.13"}
	after := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.14"}
	broken := bootstrapv1.TalosConfigSpec{GenerateType: "worker", TalosVersion: "v1.14", StrategicPatches: []string{"?"}}
	for name, tc := range map[string]struct {
		after  bootstrapv1.TalosConfigSpec
		meta   metav1.ObjectMeta
		dryRun bool
		want   string
	}{
		"nothing":                            {after: before},
		"the contract":                       {after: after, want: "is immutable"},
		"the contract in a dry run":          {after: after, dryRun: true, want: "is immutable"},
		"in a topology dry run":              {after: after, dryRun: true, meta: topologyDryRun()},
		"in a topology run that is none":     {after: after, meta: topologyDryRun(), want: "is immutable"},
		"brokenly in a topology dry run":     {after: broken, dryRun: true, meta: topologyDryRun(), want: "strategicPatches[0]"},
		"anything while it is being deleted": {after: after, meta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Unix(1, 0))}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: ptr.To(tc.dryRun)}})
			_, err := (&TalosConfig{Trials: trials}).ValidateUpdate(ctx,
				&bootstrapv1.TalosConfig{Spec: before}, &bootstrapv1.TalosConfig{ObjectMeta: tc.meta, Spec: tc.after})
			expect(g, err, tc.want)
			old, changed := &bootstrapv1.TalosConfigTemplate{}, &bootstrapv1.TalosConfigTemplate{ObjectMeta: tc.meta}
			old.Spec.Template.Spec, changed.Spec.Template.Spec = before, tc.after
			_, err = (&TalosConfigTemplate{Trials: trials}).ValidateUpdate(ctx, old, changed)
			expect(g, err, tc.want)
		})
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
