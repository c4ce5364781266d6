package integration

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// TestCredentialsAreRenewedOnDemand: the kubeconfig and the talosconfig of a live
// cluster get new certificates once, the new ones are let in, and nothing else
// happens. Nothing is written before or after, and a Secret of a user is left
// alone.
func TestCredentialsAreRenewedOnDemand(t *testing.T) {
	t.Parallel()
	const name = "certificates"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 0)
	before := clientConfigsOf(t, g, name)
	before.expectToWork(t, name)
	expiring := told(controlPlaneOf(ctx, g, name), controlplanev1.CertificatesExpiringCondition)
	g.Expect(expiring.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(expiring.Message).To(And(ContainSubstring("the CA of etcd expires"), ContainSubstring(name+"-kubeconfig expires")))

	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "annotate", "tcp", name+"-control-plane", controlplanev1.RenewCredentialsAnnotation+"=leaked")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(controlPlaneOf(ctx, g, name).Annotations).NotTo(HaveKey(controlplanev1.RenewCredentialsAnnotation))
	}).WithTimeout(timeout).Should(Succeed())

	after := clientConfigsOf(t, g, name)
	g.Expect(after.kubernetesSerial(g)).NotTo(Equal(before.kubernetesSerial(g)))
	g.Expect(after.talosSerial(g)).NotTo(Equal(before.talosSerial(g)))
	after.expectToWork(t, name)
	before.expectToWork(t, name) // They are not revoked.
	g.Expect(after.kubeconfig.OwnerReferences).To(Equal(before.kubeconfig.OwnerReferences))
	g.Expect(after.talosconfig.OwnerReferences).To(Equal(before.talosconfig.OwnerReferences))
	g.Expect(machinesOf(ctx, g, name, true)).To(HaveLen(1))
	g.Expect(machines.Bootstraps()).To(Equal(1))

	// From now on a pass has no reason to write.
	controlPlane := controlPlaneOf(ctx, g, name)
	touched := controlPlane.DeepCopy()
	metav1.SetMetaDataLabel(&touched.ObjectMeta, "touched", "")
	g.Expect(world.Client.Patch(ctx, touched, client.MergeFrom(controlPlane))).To(Succeed())
	const silence = 5 * time.Second
	g.Consistently(func(g Gomega) {
		now := clientConfigsOf(t, g, name)
		g.Expect(now.kubeconfig.ResourceVersion).To(Equal(after.kubeconfig.ResourceVersion))
		g.Expect(now.talosconfig.ResourceVersion).To(Equal(after.talosconfig.ResourceVersion))
	}, silence).Should(Succeed())

	expectMadeAgain(t, name, after)
	awaitAvailable(t, name)
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
}

// expectMadeAgain deletes both Secrets: they come back, for the same cluster.
func expectMadeAgain(t *testing.T, name string, former clientConfigs) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(world.Client.Delete(t.Context(), former.kubeconfig)).To(Succeed())
	g.Expect(world.Client.Delete(t.Context(), former.talosconfig)).To(Succeed())
	g.Eventually(func(g Gomega) {
		now := clientConfigsOf(t, g, name)
		g.Expect(now.kubeconfig.UID).NotTo(Equal(former.kubeconfig.UID))
		g.Expect(now.talosconfig.UID).NotTo(Equal(former.talosconfig.UID))
	}).WithTimeout(timeout).Should(Succeed())
	clientConfigsOf(t, g, name).expectToWork(t, name)
}

// clientConfigs are the Secrets with the client configurations of a cluster.
type clientConfigs struct{ kubeconfig, talosconfig *corev1.Secret }

func clientConfigsOf(t *testing.T, g Gomega, name string) clientConfigs {
	t.Helper()
	found := clientConfigs{kubeconfig: &corev1.Secret{}, talosconfig: &corev1.Secret{}}
	g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name + "-kubeconfig"}, found.kubeconfig)).To(Succeed())
	g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: name + "-talosconfig"}, found.talosconfig)).To(Succeed())
	return found
}

// workload is the API server of the cluster.
func (c clientConfigs) workload(g Gomega) client.Client {
	config, err := clientcmd.RESTConfigFromKubeConfig(c.kubeconfig.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	found, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	return found
}

func (c clientConfigs) kubernetesSerial(g Gomega) string {
	config, err := clientcmd.RESTConfigFromKubeConfig(c.kubeconfig.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	return serialOf(g, config.CertData)
}

func (c clientConfigs) talosSerial(g Gomega) string {
	credentials, _, err := secrets.ParseTalosconfig(c.talosconfig.Data["talosconfig"])
	g.Expect(err).NotTo(HaveOccurred())
	return serialOf(g, credentials.Cert)
}

func serialOf(g Gomega, encoded []byte) string {
	block, _ := pem.Decode(encoded)
	g.Expect(block).NotTo(BeNil())
	cert, err := x509.ParseCertificate(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())
	return cert.SerialNumber.String()
}

// expectToWork asks the API server and each node of the cluster.
func (c clientConfigs) expectToWork(t *testing.T, name string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) { // A node joins after its API server has answered.
		nodes := &corev1.NodeList{}
		g.Expect(c.workload(g).List(ctx, nodes)).To(Succeed())
		g.Expect(nodes.Items).NotTo(BeEmpty())
	}).WithTimeout(timeout).Should(Succeed())

	credentials, endpoints, err := secrets.ParseTalosconfig(c.talosconfig.Data["talosconfig"])
	g.Expect(err).NotTo(HaveOccurred())
	var addresses []string
	for _, machine := range machinesOf(ctx, g, name, true) {
		for _, address := range machine.Status.Addresses {
			if address.Type == clusterv1.MachineInternalIP {
				addresses = append(addresses, address.Address)
			}
		}
	}
	slices.Sort(addresses)
	g.Expect(endpoints).To(Equal(addresses))
	dialer := talosclient.New()
	defer dialer.Close()
	for _, endpoint := range endpoints {
		node, err := dialer.Secure(ctx, endpoint, credentials)
		g.Expect(err).NotTo(HaveOccurred())
		members, err := node.EtcdMembers(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(members).To(HaveLen(len(endpoints)))
		g.Expect(node.Close()).To(Succeed())
	}
}
