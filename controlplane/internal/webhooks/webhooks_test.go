package webhooks

import (
	"encoding/json"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

type tcp = controlplanev1.TalosControlPlane

// valid is a TalosControlPlane as a user would write it, with its defaults.
func valid() *tcp {
	controlPlane := &tcp{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "one-cp"},
		Spec: controlplanev1.TalosControlPlaneSpec{
			Version: "v1.36.3",
			MachineTemplate: controlplanev1.TalosControlPlaneMachineTemplate{
				Spec: controlplanev1.TalosControlPlaneMachineTemplateSpec{
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TalosMachineTemplate", Name: "one"},
				},
			},
			TalosConfigSpec: bootstrapv1.TalosConfigSpec{TalosVersion: "v1.13"},
		},
	}
	defaultControlPlane(&controlPlane.Spec)

	return controlPlane
}

func TestDefaults(t *testing.T) {
	g := NewWithT(t)
	controlPlane := &tcp{Spec: controlplanev1.TalosControlPlaneSpec{Version: "1.36.3"}}

	g.Expect(newWebhook(t).Default(t.Context(), controlPlane)).To(Succeed())

	spec := controlPlane.Spec
	g.Expect(spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(spec.Version).To(Equal("1.36.3"), "the validation refuses it")
	g.Expect(spec.Rollout.Strategy.Type).To(Equal(controlplanev1.RollingUpdateStrategyType))
	g.Expect(spec.Rollout.Strategy.RollingUpdate.MaxSurge).To(HaveValue(Equal(intstr.FromInt32(1))))
	g.Expect(spec.TalosConfigSpec.GenerateType).To(BeEquivalentTo("controlplane"))
	g.Expect(spec.TalosConfigSpec.Hostname.Source).To(BeEquivalentTo("MachineName"))
	g.Expect(spec.Etcd.LeaveTimeoutSeconds).To(HaveValue(BeEquivalentTo(120)))

	again := controlPlane.DeepCopy()
	g.Expect(newWebhook(t).Default(t.Context(), again)).To(Succeed())
	g.Expect(again).To(Equal(controlPlane))
}

func TestDefaultsOfATemplateAreThoseOfItsControlPlanes(t *testing.T) {
	g := NewWithT(t)
	template := &controlplanev1.TalosControlPlaneTemplate{}
	g.Expect((&TalosControlPlaneTemplate{}).Default(t.Context(), template)).To(Succeed())

	controlPlane := valid()
	inner := template.Spec.Template.Spec
	g.Expect(inner.Rollout).To(Equal(controlPlane.Spec.Rollout))
	g.Expect(inner.Etcd).To(Equal(controlPlane.Spec.Etcd))
	g.Expect(inner.TalosConfigSpec.GenerateType).To(Equal(controlPlane.Spec.TalosConfigSpec.GenerateType))
}

func TestDefaultsLeaveTheStrategyOnDeleteAlone(t *testing.T) {
	g := NewWithT(t)
	controlPlane := &tcp{}
	controlPlane.Spec.Rollout.Strategy.Type = controlplanev1.OnDeleteStrategyType
	g.Expect(newWebhook(t).Default(t.Context(), controlPlane)).To(Succeed())
	g.Expect(controlPlane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge).To(BeNil())
}

func TestValidateCreate(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*tcp)
		want string // Part of the refusal; empty when allowed.
	}{
		"a plain one": {func(*tcp) {}, ""},
		"the strategy OnDelete": {func(c *tcp) {
			c.Spec.Rollout.Strategy = controlplanev1.TalosControlPlaneRolloutStrategy{Type: controlplanev1.OnDeleteStrategyType}
		}, ""},
		"no replicas":                      {func(c *tcp) { c.Spec.Replicas = ptr.To(int32(0)) }, "odd number (1, 3, 5, ...)"},
		"a negative number of replicas":    {func(c *tcp) { c.Spec.Replicas = ptr.To(int32(-1)) }, "at least 1"},
		"an even number of replicas":       {func(c *tcp) { c.Spec.Replicas = ptr.To(int32(4)) }, "use 3 or 5"},
		"three replicas":                   {func(c *tcp) { c.Spec.Replicas = ptr.To(int32(3)) }, ""},
		"five replicas":                    {func(c *tcp) { c.Spec.Replicas = ptr.To(int32(5)) }, ""},
		"a version without v":              {func(c *tcp) { c.Spec.Version = "1.36.3" }, "prefix v"},
		"a version that is none":           {func(c *tcp) { c.Spec.Version = "v1.36" }, "semantic version"},
		"a configuration for workers":      {func(c *tcp) { c.Spec.TalosConfigSpec.GenerateType = "worker" }, "generateType"},
		"a configuration of the user":      {func(c *tcp) { c.Spec.TalosConfigSpec.GenerateType = "none"; c.Spec.TalosConfigSpec.Data = "a: b" }, "data is no machine configuration"},
		"a patch that does not apply":      {func(c *tcp) { c.Spec.TalosConfigSpec.StrategicPatches = []string{"machine: {colour: red}"} }, "strategicPatches[0]"},
		"a patch that sets the host name":  {func(c *tcp) { c.Spec.TalosConfigSpec.StrategicPatches = []string{"machine: {network: {hostname: a}}"} }, "sets the host name"},
		"no configuration of the user":     {func(c *tcp) { c.Spec.TalosConfigSpec.GenerateType = "none" }, "data"},
		"host names of the infrastructure": {func(c *tcp) { c.Spec.TalosConfigSpec.Hostname.Source = "InfrastructureName" }, "must be MachineName"},
		"a rollout at a time":              {func(c *tcp) { c.Spec.Rollout.After = metav1.Unix(1, 0) }, ""},
		"a maxSurge of 2":                  {func(c *tcp) { c.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(2)) }, "must be 0 or 1"},
		"a maxSurge in percent":            {func(c *tcp) { c.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromString("1%")) }, "must be 0 or 1"},
		"a maxSurge with OnDelete":         {func(c *tcp) { c.Spec.Rollout.Strategy.Type = controlplanev1.OnDeleteStrategyType }, ""},
		"a naming template":                {func(c *tcp) { c.Spec.MachineNaming.Template = "{{ .cluster.name }}-{{ .random }}" }, ""},
		"a naming template with a constant": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "{{ .cluster.name }}" }, "must contain {{ .random }}"},
		"a naming template with an unknown variable": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "{{ .machine }}-{{ .random }}" }, "executing"},
		"a naming template that cannot be read": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "{{ .random }" }, "parsing"},
		"a naming template with dots": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "{{ .random }}.example.com" }, "cannot be host names"},
		"a naming template that never ends": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "{{ range 9223372036854775807 }}{{ end }}{{ .random }}" }, "must have no loops"},
		"a naming template that does not use what it names": {
			func(c *tcp) { c.Spec.MachineNaming.Template = "cp-{{ len .random }}" }, `gives every Machine the name "cp-5"`},
		"a taint":                     {func(c *tcp) { taint(c, "example.com/shelf", "node.kubernetes.io/out-of-service") }, ""},
		"a taint of Kubernetes":       {func(c *tcp) { taint(c, "a", "node.kubernetes.io/unreachable") }, "spec.machineTemplate.spec.taints[1].key"},
		"a taint of Cluster API":      {func(c *tcp) { taint(c, "node.cluster.x-k8s.io/uninitialized") }, "use a key of your own"},
		"another one of Cluster API":  {func(c *tcp) { taint(c, "node.cluster.x-k8s.io/outdated-revision") }, "use a key of your own"},
		"a taint of a cloud":          {func(c *tcp) { taint(c, "node.cloudprovider.kubernetes.io/uninitialized") }, "use a key of your own"},
		"a taint of former releases":  {func(c *tcp) { taint(c, "node-role.kubernetes.io/master") }, "use a key of your own"},
		"a taint of a long name":      {func(c *tcp) { taint(c, "example.com/"+strings.Repeat("a", 64)) }, "63"},
		"a name with dots":            {func(c *tcp) { c.Name = "one.cp" }, "cannot be host names"},
		"a label that is no label":    {func(c *tcp) { c.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a b": "c"} }, "labels"},
		"a name that fills the limit": {func(c *tcp) { c.Name = "a234567890123456789012345678901234567890123456789012345678901234567890" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			controlPlane := valid()
			tc.edit(controlPlane)
			_, err := newWebhook(t).ValidateCreate(t.Context(), controlPlane)
			expect(g, err, tc.want)
		})
	}
}

func taint(c *tcp, keys ...string) {
	for _, key := range keys {
		c.Spec.MachineTemplate.Spec.Taints = append(c.Spec.MachineTemplate.Spec.Taints, clusterv1.MachineTaint{Key: key, Effect: "NoSchedule"})
	}
}

// What is for one Machine, its TalosConfig or its infrastructure machine reaches all of them
// from the template, and again when it is taken away there.
func TestAnnotationsForOneMachineAreNotForAll(t *testing.T) {
	for key, refused := range map[string]bool{
		"controlplane.cluster.x-k8s.io/talos-etcd-hook-override":        true,
		"controlplane.cluster.x-k8s.io/talos-etcd-left":                 true,
		"controlplane.cluster.x-k8s.io/talos-etcd-member":               true,
		"controlplane.cluster.x-k8s.io/remediation-for":                 true,
		"pre-terminate.delete.hook.machine.cluster.x-k8s.io/talos-etcd": true,
		"bootstrap.cluster.x-k8s.io/hold-bootstrap-data":                true,
		"infrastructure.cluster.x-k8s.io/talos-machine-reprovision":     true,
		"backup.cluster.x-k8s.io/wiped-for":                             true,
		"cluster.x-k8s.io/remediate-machine":                            true,
		"cluster.x-k8s.io/cloned-from-name":                             true,
		"cluster.x-k8s.io/cloned-from-groupkind":                        true,
		"clusterctl.cluster.x-k8s.io/block-move":                        true,
		"clusterctl.cluster.x-k8s.io/delete-for-move":                   true,
		"example.com/mine": false,
		"pre-drain.delete.hook.machine.cluster.x-k8s.io/mine":     false,
		"pre-terminate.delete.hook.machine.cluster.x-k8s.io/mine": false,
		"machine.cluster.x-k8s.io/exclude-node-draining":          false,
		"cluster.x-k8s.io/skip-remediation":                       false,
		"controlplane.cluster.x-k8s.io/talos-skip-manifests":      false, // The topology puts those of the TalosControlPlane here, too.
	} {
		t.Run(key, func(t *testing.T) {
			g, want := NewWithT(t), ""
			controlPlane, template := valid(), &controlplanev1.TalosControlPlaneTemplate{}
			template.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.13"
			annotations := map[string]string{key: ""}
			controlPlane.Spec.MachineTemplate.ObjectMeta.Annotations = annotations
			template.Spec.Template.Spec.MachineTemplate.ObjectMeta.Annotations = annotations

			_, err := newWebhook(t).ValidateCreate(t.Context(), controlPlane)
			if refused {
				want = "spec.machineTemplate.metadata.annotations[" + key + "]: Forbidden: is for one machine"
			}
			expect(g, err, want)
			_, err = (&TalosControlPlaneTemplate{}).ValidateCreate(t.Context(), template)
			if refused {
				want = "spec.template.spec.machineTemplate.metadata.annotations[" + key + "]: Forbidden: is for one machine"
			}
			expect(g, err, want)
		})
	}
}

func TestATemplateIsHeldToTheRulesOfItsControlPlanes(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*controlplanev1.TalosControlPlaneTemplateResourceSpec)
		want string
	}{
		"a plain one": {func(*controlplanev1.TalosControlPlaneTemplateResourceSpec) {}, ""},
		"a taint of Kubernetes": {func(s *controlplanev1.TalosControlPlaneTemplateResourceSpec) {
			s.MachineTemplate.Spec.Taints = []clusterv1.MachineTaint{{Key: "node.kubernetes.io/unreachable", Effect: "NoSchedule"}}
		}, "spec.template.spec.machineTemplate.spec.taints[0].key"},
		"a naming template that never ends": {func(s *controlplanev1.TalosControlPlaneTemplateResourceSpec) {
			s.MachineNaming.Template = "{{ range 9223372036854775807 }}{{ end }}{{ .random }}"
		}, "must have no loops"},
	} {
		t.Run(name, func(t *testing.T) {
			template := &controlplanev1.TalosControlPlaneTemplate{}
			template.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.13"
			tc.edit(&template.Spec.Template.Spec)
			_, err := (&TalosControlPlaneTemplate{}).ValidateCreate(t.Context(), template)
			expect(NewWithT(t), err, tc.want)
		})
	}
}

func expect(g *WithT, err error, want string) {
	if want == "" {
		g.Expect(err).NotTo(HaveOccurred())
		return
	}
	g.Expect(err).To(MatchError(ContainSubstring(want)))
}

func TestValidateUpdate(t *testing.T) {
	counted := func(c *tcp) { c.Status.Replicas = ptr.To(int32(1)) }
	three := func(c *tcp) { c.Spec.Replicas, c.Status.Replicas = ptr.To(int32(3)), ptr.To(int32(3)) }
	version := func(c *tcp) { c.Spec.Version = "v1.36.4" }
	stored := func(c *tcp) { // By a release that did not refuse it.
		counted(c)
		taint(c, "node.kubernetes.io/unreachable")
		c.Spec.MachineNaming.Template = "cp-{{ len .random }}"
		c.Spec.MachineTemplate.ObjectMeta.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: "x"}
		c.Spec.TalosConfigSpec.StrategicPatches = []string{"machine: {type: worker}"}
	}
	for name, tc := range map[string]struct {
		before, edit func(*tcp)
		dryRun       bool
		want         string
	}{
		"a version while there is a Machine":                             {counted, version, false, ""},
		"a version while a Machine is being created":                     {func(c *tcp) { annotate(c, controlplanev1.NextMachineAnnotation) }, version, false, ""},
		"a version after the bootstrap, with a lost status":              {func(c *tcp) { annotate(c, controlplanev1.BootstrapIntentAnnotation) }, version, false, ""},
		"a version before there is a Machine":                            {func(*tcp) {}, version, false, ""},
		"a version that skips a minor":                                   {counted, func(c *tcp) { c.Spec.Version = "v1.38.0" }, false, "must not skip a minor version"},
		"a version that skips a minor, with a lost status":               {func(c *tcp) { annotate(c, controlplanev1.BootstrapIntentAnnotation) }, func(c *tcp) { c.Spec.Version = "v1.38.0" }, false, "must not skip"},
		"a version that skips a minor, while a Machine is being created": {func(c *tcp) { annotate(c, controlplanev1.NextMachineAnnotation) }, func(c *tcp) { c.Spec.Version = "v1.38.0" }, false, "must not skip"},
		"a version in a dry run of the topology":                         {counted, func(c *tcp) { c.Spec.Version = "v1.38.0" }, true, ""},
		"a configuration":                                                {counted, func(c *tcp) { c.Spec.TalosConfigSpec.StrategicPatches = []string{"machine: {sysctls: {a: b}}"} }, false, ""},
		"a comment in the configuration": {
			func(c *tcp) {
				counted(c)
				c.Spec.TalosConfigSpec.StrategicPatches = []string{"machine: {sysctls: {a: b}}"}
			},
			func(c *tcp) { c.Spec.TalosConfigSpec.StrategicPatches = []string{"# why\nmachine: {sysctls: {a: b}}"} }, false, ""},
		"an infrastructure template": {counted, func(c *tcp) { c.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "two" }, false, ""},
		"labels":                     {counted, func(c *tcp) { c.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"} }, false, ""},
		"deletion timeouts":          {counted, func(c *tcp) { c.Spec.MachineTemplate.Spec.Deletion.NodeDrainTimeoutSeconds = ptr.To(int32(1)) }, false, ""},
		"readiness gates": {counted, func(c *tcp) {
			c.Spec.MachineTemplate.Spec.ReadinessGates = []clusterv1.MachineReadinessGate{{ConditionType: "A"}}
		}, false, ""},
		"taints":                                     {counted, func(c *tcp) { c.Spec.MachineTemplate.Spec.Taints = []clusterv1.MachineTaint{{Key: "a"}} }, false, ""},
		"more replicas":                              {counted, func(c *tcp) { c.Spec.Replicas = ptr.To(int32(3)) }, false, ""},
		"fewer replicas than Machines":               {three, func(c *tcp) { c.Spec.Replicas = ptr.To(int32(1)) }, false, ""},
		"fewer replicas, with no count":              {func(c *tcp) { three(c); c.Status.Replicas = nil; annotate(c, controlplanev1.BootstrapIntentAnnotation) }, func(c *tcp) { c.Spec.Replicas = ptr.To(int32(1)) }, false, ""},
		"fewer replicas, but no fewer than Machines": {func(c *tcp) { three(c); counted(c) }, func(c *tcp) { c.Spec.Replicas = ptr.To(int32(1)) }, false, ""},
		"an object stored before defaults": {
			func(c *tcp) {
				counted(c)
				c.Spec.TalosConfigSpec.Hostname.Source = ""
				c.Spec.TalosConfigSpec.GenerateType = ""
			}, func(c *tcp) { *c = *withStatus(valid()) }, false, ""},
		"another field of what was stored with what is refused now": {stored, func(c *tcp) { c.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"a": "b"} }, false, ""},
		"what is refused taken away": {stored, func(c *tcp) {
			c.Spec.MachineNaming.Template, c.Spec.MachineTemplate.Spec.Taints, c.Spec.MachineTemplate.ObjectMeta.Annotations = "", nil, nil
			c.Spec.TalosConfigSpec.StrategicPatches = nil
		}, false, ""},
		"another taint that is refused":           {stored, func(c *tcp) { taint(c, "node.kubernetes.io/not-ready") }, false, "spec.machineTemplate.spec.taints[1].key"},
		"another naming template that is refused": {stored, func(c *tcp) { c.Spec.MachineNaming.Template = "dp-{{ len .random }}" }, false, "gives every Machine the name"},
		"another annotation that is refused": {stored, func(c *tcp) {
			c.Spec.MachineTemplate.ObjectMeta.Annotations = map[string]string{
				bootstrapv1.HoldBootstrapDataAnnotation: "x", controlplanev1.EtcdLeftAnnotation: ""}
		}, false, "annotations[" + controlplanev1.EtcdLeftAnnotation + "]"},
		"another value of an annotation that is refused": {stored, func(c *tcp) {
			c.Spec.MachineTemplate.ObjectMeta.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: "y"}
		}, false, "annotations[" + bootstrapv1.HoldBootstrapDataAnnotation + "]"},
		"anything while it is being deleted": {counted, func(c *tcp) { c.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)); c.Spec.Version = "?" }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			before := valid()
			tc.before(before)
			after := before.DeepCopy()
			tc.edit(after)
			req := admission.Request{}
			if tc.dryRun {
				annotate(after, clusterv1.TopologyDryRunAnnotation)
				req.DryRun = ptr.To(true)
			}
			_, err := newWebhook(t).ValidateUpdate(admission.NewContextWithRequest(t.Context(), req), before, after)
			expect(g, err, tc.want)
		})
	}
}

func withStatus(c *tcp) *tcp {
	c.Status.Replicas = ptr.To(int32(1))

	return c
}

func annotate(object metav1.Object, name string) {
	object.SetAnnotations(map[string]string{name: "x"})
}

func TestTemplateIsImmutable(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*controlplanev1.TalosControlPlaneTemplate)
		dryRun bool
		want   string
	}{
		"a configuration": {func(c *controlplanev1.TalosControlPlaneTemplate) {
			c.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.12"
		}, false, "is immutable"},
		"a configuration in a topology dry run": {func(c *controlplanev1.TalosControlPlaneTemplate) {
			c.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.12"
		}, true, ""},
		"labels of the template itself": {func(c *controlplanev1.TalosControlPlaneTemplate) { c.Labels = map[string]string{"a": "b"} }, false, ""},
		"nothing":                       {func(*controlplanev1.TalosControlPlaneTemplate) {}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), &TalosControlPlaneTemplate{}
			before := &controlplanev1.TalosControlPlaneTemplate{}
			before.Spec.Template.Spec.TalosConfigSpec.TalosVersion = "v1.13"
			after := before.DeepCopy()
			tc.edit(after)
			g.Expect(w.Default(t.Context(), after)).To(Succeed())
			req := admission.Request{}
			if tc.dryRun {
				annotate(after, clusterv1.TopologyDryRunAnnotation)
				req.DryRun = ptr.To(true)
			}
			_, err := w.ValidateUpdate(admission.NewContextWithRequest(t.Context(), req), before, after)
			expect(g, err, tc.want)
		})
	}
}

func TestScaleFollowsTheRulesOfTheObject(t *testing.T) {
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(autoscalingv1.AddToScheme(scheme)).To(Succeed())
	w := &Scale{decoder: admission.NewDecoder(scheme)}
	encode := func(replicas, present int32) runtime.RawExtension {
		raw, err := json.Marshal(&autoscalingv1.Scale{
			TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
			Spec:     autoscalingv1.ScaleSpec{Replicas: replicas},
			Status:   autoscalingv1.ScaleStatus{Replicas: present},
		})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())

		return runtime.RawExtension{Raw: raw}
	}
	for name, tc := range map[string]struct {
		before, present, after int32
		want                   string
	}{
		"one":                  {1, 1, 1, ""},
		"none":                 {1, 1, 0, "odd number (1, 3, 5, ...)"},
		"two":                  {1, 1, 2, "use 1 or 3"},
		"three":                {1, 1, 3, ""},
		"fewer than there are": {3, 3, 1, ""},
		"two of three":         {3, 3, 2, "use 1 or 3"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			response := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Operation: admissionv1.Update, SubResource: "scale", Object: encode(tc.after, tc.present), OldObject: encode(tc.before, tc.present),
			}})
			g.Expect(response.Allowed).To(Equal(tc.want == ""))
			if tc.want != "" {
				g.Expect(response.Result.Message).To(ContainSubstring(tc.want))
			}
		})
	}
}

func TestScaleThatCannotBeReadIsRefused(t *testing.T) {
	w := &Scale{decoder: admission.NewDecoder(runtime.NewScheme())}
	response := w.Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte("{")}}})
	NewWithT(t).Expect(response.Allowed).To(BeFalse())
}
