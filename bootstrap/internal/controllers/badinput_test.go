package controllers

import (
	"encoding/base64"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// The tests of this file are named after the rows of docs/bad-input.md.

// renderedFor is the machine configuration of a machine of the shared bundle.
func renderedFor(t *testing.T, role configgen.Role, hostname string) string {
	t.Helper()
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: clusterName, Endpoint: "https://10.0.0.1:6443",
		KubernetesVersion: "v1.36.3", Secrets: sharedBundle().Machinery(), Hostname: hostname,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(rendered)
}

// conditionCase is a spec that only the cluster or the Machine shows to be
// wrong, or that came past admission.
type conditionCase struct {
	controlPlane bool
	spec         bootstrapv1.TalosConfigSpec
	reason       string
	want         []string
}

func expectConditions(t *testing.T, cases map[string]conditionCase) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, tc.controlPlane)
			generated := config.Spec.GenerateType
			config.Spec = tc.spec
			config.Spec.TalosVersion = "v1.13"
			if config.Spec.GenerateType == "" {
				config.Spec.GenerateType = generated
			}
			w := newWorld(t, newCluster(), machine, config, usersBundle())
			w.settle(cpName)
			for _, want := range tc.want {
				w.expect(cpName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionFalse, tc.reason, want)
			}
			w.expectNoSecret(cpName)
		})
	}
}

func TestBadInputBrokenStrategicPatchIsACondition(t *testing.T) {
	expectConditions(t, map[string]conditionCase{
		"an unknown field": {
			spec:   bootstrapv1.TalosConfigSpec{StrategicPatches: []string{"machine: {sysctls: {a: b}}", "machine: {colour: red}"}},
			reason: bootstrapv1.PatchFailedReason, want: []string{"strategicPatches[1] line 1", "unknown keys found"},
		},
		"a value that Talos refuses": {
			spec:   bootstrapv1.TalosConfigSpec{StrategicPatches: []string{"machine: {time: {servers: [a]}}", "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\nhostname: a\n"}},
			reason: bootstrapv1.PatchFailedReason, want: []string{"strategicPatches[1] makes a machine configuration that is not valid", "'auto' and 'hostname' cannot be set at the same time"},
		},
	})
}

func TestBadInputJSONPatchWithAWrongPathIsACondition(t *testing.T) {
	expectConditions(t, map[string]conditionCase{
		"a path that is not there": {
			spec:   bootstrapv1.TalosConfigSpec{ConfigPatches: []bootstrapv1.ConfigPatch{{Op: "remove", Path: "/machine/none"}}},
			reason: bootstrapv1.PatchFailedReason, want: []string{"configPatches[0] (path /machine/none) does not apply", "Unable to remove nonexistent key"},
		},
	})
}

func TestBadInputASectionInBothFormsIsACondition(t *testing.T) {
	expectConditions(t, map[string]conditionCase{
		"of time": {
			spec: bootstrapv1.TalosConfigSpec{StrategicPatches: []string{
				"machine: {time: {servers: [time.example]}}", "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [time.example]}\n"}},
			reason: bootstrapv1.PatchFailedReason,
			want:   []string{"strategicPatches[1]", "TimeSyncConfig", "machine.time", "time servers cannot be specified in both v1alpha1 and new-style configuration"},
		},
	})
}

func TestBadInputDataForTheOtherRoleIsACondition(t *testing.T) {
	none := func(data string) bootstrapv1.TalosConfigSpec {
		return bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, Data: data}
	}
	expectConditions(t, map[string]conditionCase{
		"data of a worker for a control plane Machine": {
			controlPlane: true, spec: none(renderedFor(t, configgen.RoleWorker, "")),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{"data configures a worker, but the Machine is a controlplane"},
		},
		"data of a control plane for a worker Machine": {
			spec:   none(renderedFor(t, configgen.RoleControlPlane, cpName)),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{"data configures a controlplane, but the Machine is a worker"},
		},
		"generateType worker for a control plane Machine": {
			controlPlane: true, spec: bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeWorker},
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{`generateType is "worker", but the Machine is a controlplane`},
		},
		"generateType controlplane for a worker Machine": {
			spec:   bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeControlPlane},
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{`generateType is "controlplane", but the Machine is a worker`},
		},
		"data that is no configuration": {
			spec:   none("a: b"),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{"the machine configuration is not valid"},
		},
		"data of an init machine": {
			controlPlane: true, spec: none(strings.Replace(renderedFor(t, configgen.RoleControlPlane, cpName), "type: controlplane", "type: init", 1)),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{"use controlplane"},
		},
	})
}

// renderedOf is the machine configuration of a machine of another bundle.
func renderedOf(t *testing.T, role configgen.Role) string {
	t.Helper()
	g := NewWithT(t)
	other, err := secrets.NewBundle(testTime, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: clusterName, Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3", Secrets: other.Machinery(),
	})
	g.Expect(err).NotTo(HaveOccurred())
	return string(rendered)
}

// The managers know the keys of the bundle alone.
func TestDataOfOtherKeysIsACondition(t *testing.T) {
	none := func(data string, patches ...string) bootstrapv1.TalosConfigSpec {
		return bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, Data: data, StrategicPatches: patches}
	}
	rendered := renderedFor(t, configgen.RoleWorker, "")
	_, crt, _ := strings.Cut(rendered, "        crt: ")
	crt, _, _ = strings.Cut(crt, "\n")
	withoutCA := strings.Replace(rendered, "    ca:\n        crt: "+crt+"\n        key: \"\"\n", "    acceptedCAs:\n        - crt: "+crt+"\n", 1)
	const other = "data has another machine.ca than Secret one-talos, or none, and none like it in machine.acceptedCAs: the managers would be locked out, and could not wipe the machine; state certs.os.crt of that Secret there"
	expectConditions(t, map[string]conditionCase{
		"of a control plane": {
			controlPlane: true, spec: none(renderedOf(t, configgen.RoleControlPlane)),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{"data has other certificates than Secret one-talos"},
		},
		"of a worker": {spec: none(renderedOf(t, configgen.RoleWorker)), reason: bootstrapv1.InvalidConfigurationReason, want: []string{other}},
		"of a worker with a patch of the CA": {
			spec:   none(rendered, "machine: {ca: {crt: YQ==}}"),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{other},
		},
		"of a worker without a CA": {
			spec:   none(strings.Replace(withoutCA, crt, "YQ==", 1)),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{other},
		},
		"of a worker that does not accept the CA after a patch": {
			spec:   none(withoutCA, "machine: {ca: {crt: YQ==}, acceptedCAs: {$patch: delete}}"),
			reason: bootstrapv1.InvalidConfigurationReason, want: []string{other},
		},
	})
	machine, config := newMachine(workerName, false)
	config.Spec = none(renderedFor(t, configgen.RoleWorker, ""))
	config.Spec.TalosVersion = "v1.13"
	cluster := newCluster()
	cluster.Spec.ControlPlaneRef.Kind = controlplanev1.TalosControlPlaneKind
	w := newWorld(t, cluster, machine, config)
	w.settle(workerName)
	w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionFalse, bootstrapv1.WaitingForCertificatesReason, "")
	w.Expect(w.client.Create(t.Context(), usersBundle())).To(Succeed())
	w.settle(workerName)
	w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
}

// Who has no control plane of Cluster API, or one of another provider, may have no bundle
// either.
func TestDataOfAWorkerWithoutAControlPlaneWaitsForNoKeys(t *testing.T) {
	for _, ref := range []clusterv1.ContractVersionedObjectReference{{}, newCluster().Spec.ControlPlaneRef} {
		machine, config := newMachine(workerName, false)
		config.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedOf(t, configgen.RoleWorker)}
		cluster := newCluster()
		cluster.Spec.ControlPlaneRef = ref
		w := newWorld(t, cluster, machine, config)
		w.settle(workerName)
		w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
	}
}

// Told before anything is waited for, also before there are keys.
func TestBadInputDataForTheOtherRoleIsToldWithoutKeys(t *testing.T) {
	machine, config := newMachine(cpName, true)
	config.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedFor(t, configgen.RoleWorker, "")}
	w := newWorld(t, newCluster(), machine, config)
	w.settle(cpName)
	w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionFalse, bootstrapv1.InvalidConfigurationReason, "data configures a worker")
	w.expectNoSecret("one-talos")
}

func TestBadInputControlPlaneHostNameIsACondition(t *testing.T) {
	const document = "apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: mine\n"
	patch := func(texts ...string) bootstrapv1.TalosConfigSpec {
		return bootstrapv1.TalosConfigSpec{StrategicPatches: texts}
	}
	const words = "sets the host name of a control plane machine"
	expectConditions(t, map[string]conditionCase{
		"by a section":  {controlPlane: true, spec: patch("machine: {network: {hostname: mine}}"), reason: bootstrapv1.PatchFailedReason, want: []string{"strategicPatches[0]", words}},
		"by a document": {controlPlane: true, spec: patch("machine: {sysctls: {a: b}}", document), reason: bootstrapv1.PatchFailedReason, want: []string{"strategicPatches[1]", words}},
		"by a JSON patch": {
			controlPlane: true, reason: bootstrapv1.PatchFailedReason, want: []string{"configPatches[0]", words},
			spec: bootstrapv1.TalosConfigSpec{ConfigPatches: []bootstrapv1.ConfigPatch{{Op: "add", Path: "/machine/network", Value: rawJSON(`{"hostname":"mine"}`)}}},
		},
		"by data": {
			controlPlane: true, reason: bootstrapv1.InvalidConfigurationReason, want: []string{`data sets the host name "mine"`, cpName},
			spec: bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, Data: renderedFor(t, configgen.RoleControlPlane, "mine")},
		},
	})
}

func TestControlPlanesOfDataAreNamedLikeTheirMachine(t *testing.T) {
	machine, config := newMachine(cpName, true)
	config.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedFor(t, configgen.RoleControlPlane, "")}
	w := newWorld(t, newCluster(), machine, config)
	w.settle(cpName)
	described, err := configgen.Describe(w.secret(cpName).Data["value"])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(described.Hostname).To(Equal(cpName))
}

// bundleWorld is an initialized cluster of one control plane Machine, and a
// second Machine that comes later.
func bundleWorld(t *testing.T) *world {
	t.Helper()
	machine, config := newMachine(cpName, true)
	cluster := newCluster()
	w := newWorld(t, cluster, machine, config, usersBundle())
	w.settle(cpName)
	w.get(cluster, clusterName)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	w.Expect(w.client.Status().Update(t.Context(), cluster)).To(Succeed())
	second, secondConfig := newMachine("one-cp-late", true)
	w.Expect(w.client.Create(t.Context(), second)).To(Succeed())
	w.Expect(w.client.Create(t.Context(), secondConfig)).To(Succeed())
	return w
}

// expectRefusedBundle says that the cluster is told of, and that nothing is made
// from other keys.
func (w *world) expectRefusedBundle(reason string) {
	w.t.Helper()
	w.settle(cpName, "one-cp-late")
	for _, name := range []string{cpName, "one-cp-late"} {
		w.expect(name, bootstrapv1.TalosConfigCertificatesAvailableCondition, metav1.ConditionFalse, reason, "one-talos")
	}
	w.expect(cpName, bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
	w.expect("one-cp-late", bootstrapv1.TalosConfigReadyCondition, metav1.ConditionFalse, bootstrapv1.WaitingForCertificatesReason, "CertificatesAvailable")
	w.expectNoSecret("one-cp-late")
}

func TestBadInputSecretBundleMissingAfterInitialization(t *testing.T) {
	for name, others := range map[string][]string{
		"alone": nil, "with the CA": {"one-ca"}, "with all that tells of it": {"one-ca", "one-talosconfig", cpName},
	} {
		t.Run(name, func(t *testing.T) {
			w := bundleWorld(t)
			w.delete("one-talos")
			for _, other := range others {
				w.delete(other)
			}
			if len(others) < 3 {
				w.expectRefusedBundle(bootstrapv1.BundleMissingReason)
			} else {
				w.settle(cpName, "one-cp-late")
				w.expect(cpName, bootstrapv1.TalosConfigCertificatesAvailableCondition, metav1.ConditionFalse, bootstrapv1.BundleMissingReason, "one-talos")
			}
			w.expectNoSecret("one-talos")
			if others != nil {
				w.expectNoSecret("one-ca")
			}
		})
	}
}

func TestBadInputSecretBundleChangedAfterInitialization(t *testing.T) {
	other, err := secrets.NewBundle(testTime, "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, others := range map[string][]string{"alone": nil, "with its record": {"one-ca"}} {
		t.Run(name, func(t *testing.T) {
			w := bundleWorld(t)
			for _, name := range others {
				w.delete(name)
			}
			before := w.secret("one-talosconfig").Data
			w.setBundle(other.YAML())
			w.expectRefusedBundle(bootstrapv1.BundleChangedReason)
			w.Expect(w.secret("one-talosconfig").Data).To(Equal(before))
			if others != nil {
				w.expectNoSecret("one-ca")
			}

			// The former content mends it.
			w.setBundle(sharedBundle().YAML())
			w.settle(cpName, "one-cp-late")
			w.expect("one-cp-late", bootstrapv1.TalosConfigReadyCondition, metav1.ConditionTrue, "", "")
			w.Expect(w.secret("one-ca").Data).To(Equal(sharedBundle().CASecretData()))
		})
	}
}

func TestBadInputTalosconfigSecretDeletedIsMadeAgain(t *testing.T) {
	w := bundleWorld(t)
	w.delete("one-talosconfig")
	w.settle(cpName, "one-cp-late")
	credentials, _, err := secrets.ParseTalosconfig(w.secret("one-talosconfig").Data["talosconfig"])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(credentials.CA).To(Equal(sharedBundle().TalosCA()))
	w.Expect(w.secret("one-talosconfig").Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, clusterName))
	w.expect(cpName, bootstrapv1.TalosConfigClientConfigAvailableCondition, metav1.ConditionTrue, "", "")
}

// TestPatchesBringTheCAsOfData: what the machine is given counts.
func TestPatchesBringTheCAsOfData(t *testing.T) {
	ca := base64.StdEncoding.EncodeToString(sharedBundle().TalosCA())
	for name, patch := range map[string]string{"its own": "machine: {ca: {crt: " + ca + "}}", "accepted": "machine: {acceptedCAs: [{crt: " + ca + "}]}"} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(workerName, false)
			config.Spec = bootstrapv1.TalosConfigSpec{
				GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedOf(t, configgen.RoleWorker), StrategicPatches: []string{patch},
			}
			w := newWorld(t, newCluster(), machine, config, usersBundle())
			w.settle(workerName)
			w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
		})
	}
	t.Run("without a bundle", func(t *testing.T) {
		machine, config := newMachine(workerName, false)
		config.Spec = bootstrapv1.TalosConfigSpec{
			GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: renderedOf(t, configgen.RoleWorker), StrategicPatches: []string{"machine: {ca: {crt: " + ca + "}}"},
		}
		cluster := newCluster()
		cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{}
		w := newWorld(t, cluster, machine, config)
		w.settle(workerName)
		w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
	})
}

// TestPatchesOfDataMakeTheBundle: a machine has the keys of its configuration, patches and all.
func TestPatchesOfDataMakeTheBundle(t *testing.T) {
	made, err := secrets.NewBundle(testTime, "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	os, other := sharedBundle().Machinery().Certs.OS, made.Machinery()
	encoded := base64.StdEncoding.EncodeToString
	withPatch := func(data, patch string, objects ...client.Object) *world {
		machine, config := newMachine(cpName, true)
		config.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: data, StrategicPatches: []string{patch}}
		w := newWorld(t, append(objects, newCluster(), machine, config)...)
		w.settle(cpName)

		return w
	}
	t.Run("when it is made", func(t *testing.T) {
		w := withPatch(renderedOf(t, configgen.RoleControlPlane), "machine: {ca: {crt: "+encoded(os.Crt)+", key: "+encoded(os.Key)+"}}")
		w.expect(cpName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
		bundle, err := secrets.GetBundle(t.Context(), w.client, client.ObjectKey{Namespace: namespace, Name: clusterName})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(bundle.TalosCA()).To(Equal(os.Crt))
	})
	t.Run("and not when a former release has made it", func(t *testing.T) {
		secret := "cluster: {secret: " + encoded([]byte(strings.Repeat("s", 32))) + "}"
		w := withPatch(renderedFor(t, configgen.RoleControlPlane, ""), secret, usersBundle())
		w.expect(cpName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
	})
	t.Run("and not another CA", func(t *testing.T) {
		w := withPatch(renderedFor(t, configgen.RoleControlPlane, ""), "machine: {ca: {crt: "+encoded(other.Certs.OS.Crt)+", key: "+encoded(other.Certs.OS.Key)+"}}", usersBundle())
		w.expect(cpName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionFalse, bootstrapv1.InvalidConfigurationReason, "data has other certificates than Secret one-talos")
	})
	t.Run("and not another key", func(t *testing.T) {
		w := withPatch(renderedFor(t, configgen.RoleControlPlane, ""), "machine: {ca: {key: "+encoded(other.Certs.OS.Key)+"}}", usersBundle())
		w.expect(cpName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionFalse, bootstrapv1.InvalidConfigurationReason, "certs.os is invalid")
	})
}

// Data that accepts the CA of the bundle lets the managers in, whatever its own CA is.
func TestDataThatAcceptsTheCAOfTheClusterIsRendered(t *testing.T) {
	machine, config := newMachine(workerName, false)
	accepted := "\nmachine:\n    acceptedCAs: [{crt: " + base64.StdEncoding.EncodeToString(sharedBundle().TalosCA()) + "}]\n"
	config.Spec = bootstrapv1.TalosConfigSpec{
		GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: strings.Replace(renderedOf(t, configgen.RoleWorker), "\nmachine:\n", accepted, 1),
	}
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(workerName)
	w.expect(workerName, bootstrapv1.TalosConfigDataSecretAvailableCondition, metav1.ConditionTrue, "", "")
}
