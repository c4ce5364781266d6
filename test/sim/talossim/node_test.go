package talossim_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/crypto/x509"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// kubernetes is an administrator's client of the API server on a machine.
func (w *world) kubernetes(m *talossim.Machine) kubernetes.Interface {
	w.t.Helper()
	certificate, key := w.bundle.KubernetesCA()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(&x509.PEMEncodedCertificateAndKey{Crt: certificate, Key: key})
	w.Expect(err).NotTo(HaveOccurred())
	made, err := x509.NewKeyPair(ca, x509.CommonName("admin"), x509.Organization("system:masters"), x509.NotAfter(time.Now().Add(testTTL)))
	w.Expect(err).NotTo(HaveOccurred())
	pair := x509.NewCertificateAndKeyFromKeyPair(made)
	return kubernetes.NewForConfigOrDie(&rest.Config{
		Host: "https://" + m.Spec().Address + ":6443", Timeout: timeout,
		TLSClientConfig: rest.TLSClientConfig{CAData: certificate, CertData: pair.Crt, KeyData: pair.Key},
	})
}

func (w *world) node(m *talossim.Machine, name string) (*corev1.Node, error) {
	return w.kubernetes(m).CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
}

// TestTheNodeHasWhatTheConfigurationSays reads back what each form of the
// configuration says about the node.
func TestTheNodeHasWhatTheConfigurationSays(t *testing.T) {
	t.Parallel()
	const (
		section  = "machine:\n  nodeLabels: {shelf: one}\n  nodeTaints: {shelf: two:NoSchedule, bare: NoExecute}\n"
		document = "apiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels: {shelf: one}\ntaints: {shelf: two:NoSchedule, bare: NoExecute}\n"
	)
	for _, test := range []struct{ contract, release, patch string }{
		{"v1.12", "v1.12.4", section},
		{"v1.13", "v1.13.9", section},
		{"v1.14", "v1.14.1", document},
	} {
		t.Run(test.contract, func(t *testing.T) {
			w := newWorld(t, talossim.Options{TalosVersion: test.release})
			w.contract = test.contract
			cp, worker := w.bootstrapped(), w.add()
			w.Expect(w.maintenance(worker).ApplyConfiguration(t.Context(), w.configuration(worker, configgen.RoleWorker, func(overlay *configgen.HostOverlay) {
				overlay.StrategicPatches = []string{test.patch}
			}))).To(Succeed())
			w.ready(worker)
			node, err := w.node(cp, "m2")
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(node.Spec.ProviderID).To(Equal("talos://m2"))
			w.Expect(node.Labels).To(HaveKeyWithValue("shelf", "one"))
			w.Expect(node.Spec.Taints).To(ContainElements(
				corev1.Taint{Key: "shelf", Value: "two", Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: "bare", Effect: corev1.TaintEffectNoExecute},
			))
			w.Expect(node.Status.NodeInfo.KubeletVersion).To(Equal("v1.36.3"))
			w.Expect(node.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: worker.Spec().Address}))
			control, err := w.node(cp, "m1")
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(control.Spec.ProviderID).To(Equal("talos://m1"))
			w.Expect(control.Labels).To(HaveKey("node-role.kubernetes.io/control-plane"))
		})
	}
}

func TestANodeThatLeftIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	cp, worker := w.bootstrapped(), w.add()
	w.configure(worker, configgen.RoleWorker)
	w.ready(worker)
	w.Expect(w.admin(worker).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(worker.Wiped).Should(Succeed())
	node, err := w.node(cp, "m2")
	w.Expect(err).NotTo(HaveOccurred(), "Talos does not delete it")
	w.Expect(node.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionUnknown))))
}

func TestDocumentsOfANewerReleaseAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	w.contract = "v1.14"
	m := w.add()
	w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), w.configuration(m, configgen.RoleWorker))).
		To(And(MatchError(talosclient.ErrInvalidConfiguration), MatchError(ContainSubstring("not registered"))))
}

func TestAMachineWithoutAHostnameMakesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	cp, worker := w.bootstrapped(), w.add()
	configuration := w.configuration(worker, configgen.RoleWorker, func(overlay *configgen.HostOverlay) {
		overlay.StrategicPatches = []string{"apiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\nhostname:\n  $patch: delete\n"}
	})
	w.Expect(w.maintenance(worker).ApplyConfiguration(t.Context(), configuration)).To(Succeed())
	w.ready(worker)
	w.Expect(worker.Hostname()).To(HavePrefix("talos-"))
	_, err := w.node(cp, worker.Hostname())
	w.Expect(err).NotTo(HaveOccurred())
}
