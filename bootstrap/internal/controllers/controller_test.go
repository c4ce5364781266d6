package controllers

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

func TestAClusterGetsItsSecretsAndConfigurations(t *testing.T) {
	cp, cpConfig := newMachine(cpName, true)
	worker, workerConfig := newMachine(workerName, false)
	cp.Status.Addresses = clusterv1.MachineAddresses{
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"},
	}
	w := newWorld(t, newCluster(), cp, cpConfig, worker, workerConfig)

	// A worker does not make the secrets of a cluster with a control plane.
	w.settle(workerName)
	w.expectNoSecret("one-talos")
	w.expect(workerName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.CertificatesWaitingReason, "first control plane Machine")
	w.expect(workerName, "Ready", metav1.ConditionFalse, bootstrapv1.WaitingForCertificatesReason, "secrets of the cluster")

	w.settle(cpName, workerName)

	bundle, err := secrets.ParseBundle(w.secret("one-talos").Data["bundle"])
	w.Expect(err).NotTo(HaveOccurred())
	ca := w.secret("one-ca")
	w.Expect(ca.Data).To(Equal(bundle.CASecretData()))
	w.Expect(ca.Annotations).To(HaveKeyWithValue(bootstrapv1.BundleDigestAnnotation, bundle.Digest()))
	_, endpoints, err := secrets.ParseTalosconfig(w.secret("one-talosconfig").Data["talosconfig"])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(endpoints).To(Equal([]string{"10.0.0.7"}), "the control plane endpoint is no endpoint of the Talos API")
	for _, name := range []string{"one-talos", "one-ca", "one-talosconfig"} {
		secret := w.secret(name)
		w.Expect(secret.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, clusterName), name)
		w.Expect(secret.Type).To(Equal(clusterv1.ClusterSecretType), name)
		w.Expect(secret.OwnerReferences).To(ConsistOf(And(HaveField("Kind", "Cluster"), HaveField("Controller", BeNil()))), name)
	}

	for name, role := range map[string]configgen.Role{cpName: configgen.RoleControlPlane, workerName: configgen.RoleWorker} {
		stored := w.secret(name)
		w.Expect(stored.Type).To(Equal(clusterv1.ClusterSecretType))
		w.Expect(stored.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, clusterName))
		w.Expect(metav1.GetControllerOf(stored).Name).To(Equal(name))
		described, err := configgen.Describe(stored.Data["value"])
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(described.Role).To(Equal(role))
		w.Expect(described.KubernetesVersion).To(Equal("v1.36.3"))

		config := &bootstrapv1.TalosConfig{}
		w.get(config, name)
		w.Expect(config.Status.DataSecretName).To(Equal(name))
		w.Expect(config.Status.Initialization.DataSecretCreated).To(HaveValue(BeTrue()))
		w.Expect(conditions.IsTrue(config, "Ready")).To(BeTrue())
	}
	described, err := configgen.Describe(w.secret(cpName).Data["value"])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(described.Hostname).To(Equal(cpName), "the host name of a control plane machine is ours")

	network := loaded(w, cpName).K8sNetworkConfig()
	w.Expect(network.PodCIDRs()).To(Equal([]netip.Prefix{netip.MustParsePrefix("10.50.0.0/16")}))
	w.Expect(network.ServiceCIDRs()).To(Equal([]netip.Prefix{netip.MustParsePrefix("10.60.0.0/16")}))
	w.Expect(network.DNSDomain()).To(Equal("test.local"))
	w.Expect(loaded(w, cpName).K8sAPIServerConfig().APIPort()).To(Equal(7443))
}

func TestWaitsAreNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		edit   func(*clusterv1.Cluster)
		reason string
	}{
		"the infrastructure": {func(c *clusterv1.Cluster) { c.Status.Initialization.InfrastructureProvisioned = nil }, bootstrapv1.WaitingForClusterInfrastructureReason},
		"the endpoint":       {func(c *clusterv1.Cluster) { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} }, bootstrapv1.WaitingForControlPlaneEndpointReason},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster()
			tc.edit(cluster)
			machine, config := newMachine(cpName, true)
			w := newWorld(t, cluster, machine, config, usersBundle())
			w.settle(cpName)
			w.expect(cpName, "Ready", metav1.ConditionFalse, tc.reason, "Waiting")
			w.expectNoSecret(cpName)
		})
	}
}

func TestTheBundleIsMadeOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*world, *clusterv1.Cluster)
		want string
	}{
		"gone after initialization": {func(w *world, c *clusterv1.Cluster) {
			c.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
			w.Expect(w.client.Status().Update(w.t.Context(), c)).To(Succeed())
			w.delete("one-talos")
			w.delete("one-ca")
		}, bootstrapv1.BundleMissingReason},
		"gone before": {func(w *world, _ *clusterv1.Cluster) { w.delete("one-talos") }, bootstrapv1.BundleMissingReason},
		"gone with its record": {func(w *world, _ *clusterv1.Cluster) {
			w.delete("one-talos")
			w.delete("one-ca")
		}, bootstrapv1.BundleMissingReason},
		"changed": {func(w *world, _ *clusterv1.Cluster) {
			other, err := secrets.NewBundle(testTime, "v1.13", nil)
			w.Expect(err).NotTo(HaveOccurred())
			w.setBundle(other.YAML())
		}, bootstrapv1.BundleChangedReason},
		"broken": {func(w *world, _ *clusterv1.Cluster) { w.setBundle([]byte("?")) }, bootstrapv1.BundleInvalidReason},
	} {
		t.Run(name, func(t *testing.T) {
			cp, cpConfig := newMachine(cpName, true)
			cluster := newCluster()
			w := newWorld(t, cluster, cp, cpConfig, usersBundle())
			w.settle(cpName)
			w.get(cluster, clusterName)
			tc.edit(w, cluster)
			second, secondConfig := newMachine("one-cp-late", true)
			w.Expect(w.client.Create(t.Context(), second)).To(Succeed())
			w.Expect(w.client.Create(t.Context(), secondConfig)).To(Succeed())

			w.settle(cpName, "one-cp-late")

			w.expect(cpName, "CertificatesAvailable", metav1.ConditionFalse, tc.want, "one-talos")
			w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
			w.expect("one-cp-late", "Ready", metav1.ConditionFalse, bootstrapv1.WaitingForCertificatesReason, "")
			w.expectNoSecret("one-cp-late")
			if tc.want == bootstrapv1.BundleMissingReason {
				w.expectNoSecret("one-talos")
			}
		})
	}
}

func TestTheSecretsOfAUserAreTaken(t *testing.T) {
	t.Run("a CA", func(t *testing.T) {
		machine, config := newMachine(cpName, true)
		users := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one-ca"}, Data: sharedBundle().CASecretData()}
		w := newWorld(t, newCluster(), machine, config, users)
		w.settle(cpName)
		bundle, err := secrets.ParseBundle(w.secret("one-talos").Data["bundle"])
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(bundle.CASecretData()).To(Equal(sharedBundle().CASecretData()))
		w.Expect(w.secret("one-ca").Annotations).To(HaveKeyWithValue(bootstrapv1.BundleDigestAnnotation, bundle.Digest()))
	})
	t.Run("a CA that is not the bundle's", func(t *testing.T) {
		machine, config := newMachine(cpName, true)
		users := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one-ca"}, Data: map[string][]byte{"tls.crt": []byte("other")}}
		w := newWorld(t, newCluster(), machine, config, users, usersBundle())
		w.settle(cpName)
		w.expect(cpName, "CertificatesAvailable", metav1.ConditionFalse, bootstrapv1.BundleInvalidReason, "another Kubernetes CA")
		w.expectNoSecret(cpName)
	})
	t.Run("a configuration", func(t *testing.T) {
		first, firstConfig := newMachine(cpName, true)
		w := newWorld(t, newCluster(), first, firstConfig, usersBundle())
		w.settle(cpName)
		data := w.secret(cpName).Data["value"]

		machine, config := newMachine(cpName, true)
		config.Spec = bootstrapv1.TalosConfigSpec{GenerateType: bootstrapv1.GenerateTypeNone, TalosVersion: "v1.13", Data: string(data)}
		w = newWorld(t, newCluster(), machine, config)
		w.settle(cpName)
		w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
		bundle, err := secrets.ParseBundle(w.secret("one-talos").Data["bundle"])
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(bundle.Digest()).To(Equal(sharedBundle().Digest()))

		worker, workerConfig := newMachine(workerName, false)
		workerConfig.Spec = config.Spec
		w = newWorld(t, newCluster(), worker, workerConfig, usersBundle())
		w.settle(workerName)
		w.expect(workerName, "Ready", metav1.ConditionFalse, bootstrapv1.InvalidConfigurationReason, "data configures a controlplane")
	})
}

func TestRestartsBetweenAnyTwoWrites(t *testing.T) {
	const writes = 8
	for killAt := 1; killAt <= writes; killAt++ {
		cp, cpConfig := newMachine(cpName, true)
		w := newWorld(t, newCluster(), cp, cpConfig)
		w.life.DieAt(killAt)
		for range writes {
			if _, err := w.reconcile(cpName); err != nil {
				break
			}
		}
		var first []byte
		w.life.Restart()
		stored := &corev1.Secret{}
		if w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "one-talos"}, stored) == nil {
			first = stored.Data["bundle"]
		}
		w.settle(cpName)
		w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
		w.expect(cpName, "ClientConfigAvailable", metav1.ConditionTrue, "", "")
		if first != nil {
			w.Expect(w.secret("one-talos").Data["bundle"]).To(Equal(first), "killed at write %d", killAt)
		}
	}
}

func TestBrokenConfigurationsAreNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		edit         func(*clusterv1.Machine, *bootstrapv1.TalosConfig)
		reason, want string
	}{
		"a patch": {func(_ *clusterv1.Machine, c *bootstrapv1.TalosConfig) {
			c.Spec.StrategicPatches = []string{"machine: {sysctls: {a: b}}", "machine: {colour: red}"}
		}, bootstrapv1.PatchFailedReason, "strategicPatches[1]"},
		"the role":   {func(_ *clusterv1.Machine, c *bootstrapv1.TalosConfig) { c.Spec.GenerateType = "worker" }, bootstrapv1.InvalidConfigurationReason, "the Machine is a controlplane"},
		"no version": {func(m *clusterv1.Machine, _ *bootstrapv1.TalosConfig) { m.Spec.Version = "" }, bootstrapv1.InvalidConfigurationReason, "set spec.version"},
	} {
		t.Run(name, func(t *testing.T) {
			machine, config := newMachine(cpName, true)
			tc.edit(machine, config)
			w := newWorld(t, newCluster(), machine, config, usersBundle())
			w.settle(cpName)
			w.expect(cpName, "Ready", metav1.ConditionFalse, tc.reason, tc.want)
			w.expectNoSecret(cpName)
		})
	}
}

func TestAConsumedConfigurationIsNeverRewritten(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	before := w.secret(cpName).Data["value"]

	cluster := &clusterv1.Cluster{}
	w.get(cluster, clusterName)
	cluster.Spec.ClusterNetwork.ServiceDomain = "changed.local"
	w.Expect(w.client.Update(t.Context(), cluster)).To(Succeed())
	w.get(config, cpName)
	config.Status = bootstrapv1.TalosConfigStatus{}
	w.Expect(w.client.Status().Update(t.Context(), config)).To(Succeed())

	w.settle(cpName)
	w.Expect(w.secret(cpName).Data["value"]).To(Equal(before))
	w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")
	w.get(config, cpName)
	w.Expect(config.Status.DataSecretName).To(Equal(cpName), "a lost status is found again")
}

func TestForeignSecretsAreLeftAlone(t *testing.T) {
	machine, config := newMachine(cpName, true)
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cpName}, Data: map[string][]byte{"value": []byte("theirs")}}
	w := newWorld(t, newCluster(), machine, config, usersBundle(), foreign)
	w.settle(cpName)
	w.expect(cpName, "Ready", metav1.ConditionFalse, bootstrapv1.DataSecretForeignReason, cpName)
	w.Expect(w.secret(cpName).Data["value"]).To(Equal([]byte("theirs")))
}

func TestSecretsOfAMovedClusterAreTakenOver(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	stored := w.secret(cpName)
	stored.OwnerReferences[0].UID = "in-another-management-cluster"
	w.Expect(w.client.Update(t.Context(), stored)).To(Succeed())
	w.settle(cpName)
	w.Expect(w.secret(cpName).OwnerReferences).To(ConsistOf(HaveField("UID", config.UID)))
}

func TestTheClientConfigurationIsRenewedAtHalfOfItsLife(t *testing.T) {
	machine, config := newMachine(cpName, true)
	w := newWorld(t, newCluster(), machine, config, usersBundle())
	w.settle(cpName)
	first := w.secret("one-talosconfig").Data["talosconfig"]
	result, err := w.reconcile(cpName)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically("~", secrets.ClientConfigLife/2, 2*time.Hour))

	w.clock.SetTime(testTime.Add(secrets.ClientConfigLife/2 - 24*time.Hour))
	w.settle(cpName)
	w.Expect(w.secret("one-talosconfig").Data["talosconfig"]).To(Equal(first))

	w.clock.SetTime(testTime.Add(secrets.ClientConfigLife/2 + time.Hour))
	w.settle(cpName)
	w.Expect(w.secret("one-talosconfig").Data["talosconfig"]).NotTo(Equal(first))

	w.delete("one-talosconfig")
	w.settle(cpName)
	w.secret("one-talosconfig")
}

// A TalosControlPlane writes the client configuration of its Cluster itself.
func TestTheClientConfigurationOfATalosControlPlaneIsLeftToIt(t *testing.T) {
	machine, config := newMachine(cpName, true)
	cluster := newCluster()
	cluster.Spec.ControlPlaneRef.Kind = "TalosControlPlane"
	w := newWorld(t, cluster, machine, config)
	w.settle(cpName)
	w.expectNoSecret("one-talosconfig")
	w.expect(cpName, "ClientConfigAvailable", metav1.ConditionFalse, bootstrapv1.ClientConfigWaitingReason, "control plane provider")
	w.expect(cpName, "Ready", metav1.ConditionTrue, "", "")

	made := &corev1.Secret{ObjectMeta: objectMeta(namespace, "one-talosconfig"), Data: map[string][]byte{"talosconfig": []byte("theirs")}}
	made.Annotations = map[string]string{bootstrapv1.GeneratedAnnotation: ""}
	w.Expect(w.client.Create(t.Context(), made)).To(Succeed())
	w.settle(cpName)
	w.Expect(w.secret("one-talosconfig").Data).To(Equal(made.Data))
	w.Expect(w.secret("one-talosconfig").OwnerReferences).To(ConsistOf(HaveField("Kind", "Cluster")))
	w.expect(cpName, "ClientConfigAvailable", metav1.ConditionTrue, "", "")
}

func TestAClientConfigurationOfAUserIsLeftAlone(t *testing.T) {
	machine, config := newMachine(cpName, true)
	users := &corev1.Secret{ObjectMeta: objectMeta(namespace, "one-talosconfig"), Data: map[string][]byte{"talosconfig": []byte("mine")}}
	w := newWorld(t, newCluster(), machine, config, users)
	w.settle(cpName)
	w.Expect(w.secret("one-talosconfig").Data).To(Equal(users.Data))
	w.expect(cpName, "ClientConfigAvailable", metav1.ConditionTrue, "", "")
}

func TestNothingIsWrittenWhilePaused(t *testing.T) {
	machine, config := newMachine(cpName, true)
	cluster := newCluster()
	cluster.Spec.Paused = ptr.To(true)
	w := newWorld(t, cluster, machine, config)
	w.settle(cpName)
	w.expectNoSecret("one-talos")
	w.expect(cpName, "Paused", metav1.ConditionTrue, "", "")
}

func (w *world) delete(name string) {
	w.t.Helper()
	w.Expect(w.client.Delete(w.t.Context(), w.secret(name))).To(Succeed())
}

func (w *world) setBundle(raw []byte) {
	w.t.Helper()
	stored := w.secret("one-talos")
	stored.Data["bundle"] = raw
	w.Expect(w.client.Update(w.t.Context(), stored)).To(Succeed())
}
