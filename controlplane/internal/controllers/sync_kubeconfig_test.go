package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestKubeconfigSecretIsAsTheContractWantsIt(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())

	secret := w.secret("one-kubeconfig")
	g.Expect(secret.Type).To(BeEquivalentTo(clusterv1.ClusterSecretType))
	g.Expect(secret.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, testCluster))
	g.Expect(metav1.IsControlledBy(secret, w.controlPlane())).To(BeTrue())
	config, err := clientcmd.Load(secret.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Clusters[testCluster].Server).To(Equal("https://10.0.0.100:6443"))
	g.Expect(config.AuthInfos).To(HaveLen(1))
	for _, user := range config.AuthInfos {
		g.Expect(user.ClientCertificateData).NotTo(BeEmpty())
		g.Expect(user.Exec).To(BeNil())
	}
}

func TestKubeconfigIsRenewed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"not when nothing changes":             {func(*world) {}, false},
		"not before half of its life":          {func(w *world) { w.clock.SetTime(testTime.AddDate(0, 5, 0)) }, false},
		"after half of its life":               {func(w *world) { w.clock.SetTime(testTime.AddDate(0, 7, 0)) }, true},
		"when the endpoint changes":            {func(w *world) { w.changeEndpoint("10.0.0.200") }, true},
		"when it is not readable":              {func(w *world) { w.writeKubeconfig([]byte("{")) }, true},
		"not when a user has brought a Secret": {func(w *world) { w.bringKubeconfig(); w.changeEndpoint("10.0.0.200") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			r := w.manager()
			w.settle(r)
			tc.change(w)
			before := w.secret("one-kubeconfig")

			w.settle(r)

			after := w.secret("one-kubeconfig")
			if tc.want {
				g.Expect(after.Data).NotTo(Equal(before.Data))
				config, err := clientcmd.Load(after.Data["value"])
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(config.Clusters[testCluster].Server).To(Equal("https://" + w.endpoint() + ":6443"))
			} else {
				g.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
			}
		})
	}
}

func (w *world) cluster() *clusterv1.Cluster {
	w.t.Helper()
	cluster := &clusterv1.Cluster{}
	NewWithT(w.t).Expect(w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: testCluster}, cluster)).To(Succeed())

	return cluster
}

func (w *world) endpoint() string {
	return w.cluster().Spec.ControlPlaneEndpoint.Host
}

func (w *world) changeEndpoint(host string) {
	w.t.Helper()
	cluster := w.cluster()
	cluster.Spec.ControlPlaneEndpoint.Host = host
	NewWithT(w.t).Expect(w.client.Update(w.t.Context(), cluster)).To(Succeed())
}

func (w *world) writeKubeconfig(data []byte) {
	w.t.Helper()
	secret := w.secret("one-kubeconfig")
	secret.Data = map[string][]byte{"value": data}
	NewWithT(w.t).Expect(w.client.Update(w.t.Context(), secret)).To(Succeed())
}

// bringKubeconfig puts a Secret of a user in the place of ours.
func (w *world) bringKubeconfig() {
	w.t.Helper()
	g := NewWithT(w.t)
	ours := w.secret("one-kubeconfig")
	g.Expect(w.client.Delete(w.t.Context(), ours)).To(Succeed())
	g.Expect(w.client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: ours.Name, Labels: ours.Labels},
		Data:       ours.Data, Type: corev1.SecretTypeOpaque,
	})).To(Succeed())
}

func TestBadInputKubeconfigSecretDeletedIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	before := w.secret("one-kubeconfig")
	g.Expect(w.client.Delete(t.Context(), before)).To(Succeed())

	w.settle(r)

	config, err := clientcmd.Load(w.secret("one-kubeconfig").Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	former, err := clientcmd.Load(before.Data["value"])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.Clusters[testCluster]).To(Equal(former.Clusters[testCluster]), "of the same CA")
}
