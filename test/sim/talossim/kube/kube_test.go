package kube_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/crypto/x509"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

const (
	timeout = 20 * time.Second
	version = "v1.36.3"
	masters = "system:masters"
)

// workload is a cluster with one API server.
type workload struct {
	clusters *kube.Clusters
	ca       *x509.CertificateAuthority
	address  string
	stop     func()
}

func newWorkload(t *testing.T) *workload {
	t.Helper()
	g := NewWithT(t)
	clusters, err := kube.New()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(clusters.Close)
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.ECDSA(true), x509.Organization("kubernetes"))
	g.Expect(err).NotTo(HaveOccurred())
	w := &workload{clusters: clusters, ca: ca, address: freeAddress(t)}
	w.serve(t)
	return w
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func (w *workload) serve(t *testing.T) {
	t.Helper()
	stop, err := w.clusters.Serve(t.Context(), kube.APIServer{
		CA: w.ca.CrtPEM, CAKey: w.ca.KeyPEM, Listen: w.address, SANs: []string{"127.0.0.1", "kubernetes"}, KubernetesVersion: version,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w.stop = stop
	t.Cleanup(stop)
}

// config is that of a kubeconfig made from the CA.
func (w *workload) config(t *testing.T, organization string) *rest.Config {
	t.Helper()
	pair, err := x509.NewKeyPair(w.ca, x509.CommonName("admin"), x509.Organization(organization), x509.NotAfter(time.Now().Add(time.Hour)))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	client := x509.NewCertificateAndKeyFromKeyPair(pair)
	return &rest.Config{
		Host: "https://" + w.address, Timeout: timeout,
		TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.CrtPEM, CertData: client.Crt, KeyData: client.Key},
	}
}

func (w *workload) node(name string) kube.Node {
	return kube.Node{
		CA: w.ca.CrtPEM, Name: name, ProviderID: "talos://" + name, KubeletVersion: version, TalosVersion: "v1.13.9", Addresses: []string{"127.0.0.9"},
	}
}

func TestOnlyAdministratorsAreLetIn(t *testing.T) {
	w := newWorkload(t)
	list := func(config *rest.Config) error {
		_, err := kubernetes.NewForConfigOrDie(config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	}

	t.Run("an administrator", func(t *testing.T) {
		NewWithT(t).Expect(list(w.config(t, masters))).To(Succeed())
	})
	t.Run("another user of the CA", func(t *testing.T) {
		g := NewWithT(t)
		config := w.config(t, "system:nodes")
		g.Expect(apierrors.IsForbidden(list(config))).To(BeTrue())
		info, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerVersion()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]string{info.GitVersion, info.Major, info.Minor}).To(Equal([]string{version, "1", "36"}))
		raw, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(raw)).To(Equal("ok"))
	})
	t.Run("nobody", func(t *testing.T) {
		g := NewWithT(t)
		config := w.config(t, masters)
		config.CertData, config.KeyData = nil, nil
		g.Expect(apierrors.IsUnauthorized(list(config))).To(BeTrue())
		for _, path := range []string{"/readyz", "/version"} {
			_, err := kubernetes.NewForConfigOrDie(config).RESTClient().Get().AbsPath(path).DoRaw(t.Context())
			g.Expect(apierrors.IsUnauthorized(err)).To(BeTrue(), path)
		}
	})
	t.Run("a user of another CA", func(t *testing.T) {
		g := NewWithT(t)
		config := newWorkload(t).config(t, masters)
		config.Host, config.CAData = "https://"+w.address, w.ca.CrtPEM
		err := list(config)
		g.Expect(err).To(HaveOccurred())
		var answer apierrors.APIStatus
		g.Expect(errors.As(err, &answer)).To(BeFalse(), "the handshake must fail: %v", err)
	})
}

func TestNodesComeAndGo(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	client := kubernetes.NewForConfigOrDie(w.config(t, masters))
	nodes := client.CoreV1().Nodes()
	watched, err := nodes.Watch(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(watched.Stop)
	heard := func(kind watch.EventType, ready corev1.ConditionStatus) {
		t.Helper()
		g.Eventually(func(g Gomega) {
			var event watch.Event
			g.Expect(watched.ResultChan()).To(Receive(&event))
			g.Expect(event.Type).To(Equal(kind))
			node, ok := event.Object.(*corev1.Node)
			g.Expect(ok).To(BeTrue())
			g.Expect(readiness(node)).To(Equal(ready))
		}).WithTimeout(timeout).Should(Succeed())
	}

	g.Expect(w.clusters.Join(t.Context(), w.node("one"))).To(Succeed())
	heard(watch.Added, corev1.ConditionTrue)
	g.Expect(w.clusters.Leave(t.Context(), w.ca.CrtPEM, "one")).To(Succeed())
	heard(watch.Modified, corev1.ConditionUnknown)

	again := w.node("one")
	again.Addresses = []string{"127.0.0.10"}
	g.Expect(w.clusters.Join(t.Context(), again)).To(Succeed())
	heard(watch.Modified, corev1.ConditionTrue)
	node, err := nodes.Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.UID).NotTo(BeEmpty())
	g.Expect(node.Spec.ProviderID).To(Equal("talos://one"))
	g.Expect(node.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.10"}))

	g.Expect(nodes.Delete(t.Context(), "one", metav1.DeleteOptions{})).To(Succeed())
	heard(watch.Deleted, corev1.ConditionTrue)
	_, err = nodes.Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}

// TestAWatchThatBeginsAnew: an informer that has lost its watch asks for all that there is
// once more, and says how far it came.
func TestAWatchThatBeginsAnew(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	nodes := kubernetes.NewForConfigOrDie(w.config(t, masters)).CoreV1().Nodes()
	for _, name := range []string{"one", "two"} {
		g.Expect(w.clusters.Join(t.Context(), w.node(name))).To(Succeed())
	}
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.clusters.Leave(t.Context(), w.ca.CrtPEM, "two")).To(Succeed())

	watched, err := nodes.Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: list.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		SendInitialEvents: new(true), AllowWatchBookmarks: true,
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(watched.Stop)
	// They come in any order.
	ready := map[string]corev1.ConditionStatus{}
	for range list.Items {
		var event watch.Event
		g.Eventually(watched.ResultChan()).WithTimeout(timeout).Should(Receive(&event))
		g.Expect(event.Type).To(Equal(watch.Added))
		node := event.Object.(*corev1.Node)
		ready[node.Name] = readiness(node)
	}
	g.Expect(ready).To(Equal(map[string]corev1.ConditionStatus{"one": corev1.ConditionTrue, "two": corev1.ConditionUnknown}))
	g.Eventually(watched.ResultChan()).WithTimeout(timeout).Should(Receive(And(
		HaveField("Type", watch.Bookmark), HaveField("Object.Annotations", HaveKey(metav1.InitialEventsAnnotationKey)))))
}

func readiness(node *corev1.Node) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

func TestMetadataOnly(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	g.Expect(w.clusters.Join(t.Context(), w.node("one"))).To(Succeed())
	client := metadata.NewForConfigOrDie(w.config(t, masters)).Resource(corev1.SchemeGroupVersion.WithResource("nodes"))

	list, err := client.List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list.Items).To(HaveLen(1))
	node, err := client.Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelHostname, "one"))
	watched, err := client.Watch(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(watched.Stop)
	g.Eventually(watched.ResultChan()).WithTimeout(timeout).Should(Receive(HaveField("Object.Name", "one")))
}

func TestDataBelongsToTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	g.Expect(w.clusters.Join(t.Context(), w.node("one"))).To(Succeed())
	client := kubernetes.NewForConfigOrDie(w.config(t, masters))

	w.stop()
	_, err := client.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(err).To(HaveOccurred())
	g.Expect(w.clusters.Join(t.Context(), w.node("two"))).To(MatchError(kube.ErrNoAPIServer))
	w.serve(t)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	w.stop()
	w.clusters.Drop(w.ca.CrtPEM)
	w.serve(t)
	_, err = client.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}

// TestWhatWasDroppedIsRestored: the last that was dropped, and only where nothing is.
func TestWhatWasDroppedIsRestored(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	client := kubernetes.NewForConfigOrDie(w.config(t, masters))
	names := func(g Gomega) []string {
		list, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var found []string
		for _, node := range list.Items {
			found = append(found, node.Name)
		}
		return found
	}
	revision := func(g Gomega) int64 {
		list, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(list.Items).To(HaveLen(4))
		found, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	var before int64
	for _, name := range []string{"one", "two"} {
		g.Expect(w.clusters.Join(t.Context(), w.node(name))).To(Succeed())
		g.Expect(names(g)).To(Equal([]string{name}))
		w.clusters.Restore(w.ca.CrtPEM)
		g.Expect(names(g)).To(Equal([]string{name}), "there is something")
		before = revision(g)
		w.stop()
		w.clusters.Drop(w.ca.CrtPEM)
		if name == "one" {
			w.serve(t)
		}
	}

	w.clusters.Fill(w.ca.CrtPEM, true)
	g.Expect(w.clusters.Join(t.Context(), w.node("three"))).To(MatchError(kube.ErrNoAPIServer))
	g.Expect(w.clusters.Leave(t.Context(), w.ca.CrtPEM, "two")).To(Succeed(), "it is found once there is a database again")
	w.clusters.Restore(w.ca.CrtPEM)
	w.serve(t)
	g.Eventually(names).WithTimeout(timeout).Should(Equal([]string{"two"}))
	g.Expect(revision(g)).To(BeNumerically(">", before+1_000_000_000), "it was raised")
	node, err := client.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(readiness(node)).To(Equal(corev1.ConditionUnknown))
	g.Expect(w.clusters.Join(t.Context(), w.node("three"))).To(Succeed())
	g.Expect(names(g)).To(ConsistOf("two", "three"))

	w.clusters.Restore([]byte("of another cluster"))
}

func TestAnswersThatKubectlReads(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	g.Expect(w.clusters.Join(t.Context(), w.node("one"))).To(Succeed())
	client := kubernetes.NewForConfigOrDie(w.config(t, masters)).RESTClient()
	deletion := &metav1.Status{}
	raw, err := client.Delete().AbsPath("/api/v1/nodes/one").DoRaw(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(raw, deletion)).To(Succeed())
	g.Expect(deletion.Status).To(Equal(metav1.StatusSuccess))
	for _, path := range []string{"/apis/coordination.k8s.io/v1/leases", "/api/v1/nodes/one"} {
		_, err = client.Get().AbsPath(path).DoRaw(t.Context())
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%s: %v", path, err)
	}
	g.Expect(w.clusters.Join(t.Context(), w.node(""))).NotTo(Succeed())
}

func TestServingCertificateIsOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	conn, err := (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots(w.ca), ServerName: "kubernetes"}}).DialContext(t.Context(), "tcp", w.address)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conn.Close()).To(Succeed())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.address+"/readyz", http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots(newWorkload(t).ca)}}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	g.Expect(err).To(MatchError(ContainSubstring("certificate")))
}
