package simfleet_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/crypto/x509"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

const timeout = 30 * time.Second

// TestTwoClustersBehindOneBalancer builds two clusters on one fleet without any
// manager, and asks their API servers at their endpoints.
func TestTwoClustersBehindOneBalancer(t *testing.T) {
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), simfleet.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	hosts, err := machines.Add(t.Context(), 2)
	g.Expect(err).NotTo(HaveOccurred())
	pool := talosclient.New()
	t.Cleanup(pool.Close)

	for i, host := range hosts {
		name := fmt.Sprintf("cluster-%d", i)
		endpoint, err := machines.Endpoint(t.Context(), name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(machines.Endpoint(t.Context(), name)).To(Equal(endpoint))
		bundle, err := secrets.NewBundle(time.Now(), "v1.13", nil)
		g.Expect(err).NotTo(HaveOccurred())
		bootstrap(t, g, pool, host, endpoint, bundle)

		client := kubernetes.NewForConfigOrDie(kubeconfig(g, bundle, endpoint))
		g.Eventually(func(g Gomega) {
			nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(nodes.Items).To(HaveLen(1))
			g.Expect(nodes.Items[0].Name).To(Equal(host.Name))
			g.Expect(nodes.Items[0].Spec.ProviderID).To(Equal("talos://" + host.Name))
		}).WithTimeout(timeout).Should(Succeed())
		watch, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		node := &corev1.Node{}
		g.Eventually(watch.ResultChan()).WithTimeout(timeout).Should(Receive(HaveField("Object", BeAssignableToTypeOf(node))))
		watch.Stop()
	}
	g.Expect(machines.Bootstraps()).To(Equal(2))
}

func bootstrap(t *testing.T, g *WithT, pool *talosclient.Pool, host fleet.Host, endpoint fleet.Endpoint, bundle *secrets.Bundle) {
	t.Helper()
	rendered, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: "v1.13", ClusterName: "sim", KubernetesVersion: simfleet.KubernetesVersion,
		Endpoint: fmt.Sprintf("https://%s:%d", endpoint.Host, endpoint.Port), Secrets: bundle.Machinery(), Hostname: host.Name,
	})
	g.Expect(err).NotTo(HaveOccurred())
	configuration, err := configgen.Overlay(rendered, configgen.HostOverlay{ProviderID: "talos://" + host.Name, Container: true})
	g.Expect(err).NotTo(HaveOccurred())
	node, err := pool.Maintenance(t.Context(), host.Address, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.ApplyConfiguration(t.Context(), configuration)).To(Succeed())
	creds, err := bundle.ClientCredentials(secrets.RoleAdmin, time.Now(), time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		node, err := pool.Secure(t.Context(), host.Address, creds)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		return node.Bootstrap(t.Context())
	}).WithTimeout(timeout).Should(Succeed())
}

// kubeconfig is an administrator's, issued by the cluster's CA.
func kubeconfig(g *WithT, bundle *secrets.Bundle, endpoint fleet.Endpoint) *rest.Config {
	certificate, key := bundle.KubernetesCA()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(&x509.PEMEncodedCertificateAndKey{Crt: certificate, Key: key})
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := x509.NewKeyPair(ca, x509.CommonName("admin"), x509.Organization("system:masters"), x509.NotAfter(time.Now().Add(time.Hour)))
	g.Expect(err).NotTo(HaveOccurred())
	client := x509.NewCertificateAndKeyFromKeyPair(pair)
	return &rest.Config{
		Host:            fmt.Sprintf("https://%s:%d", endpoint.Host, endpoint.Port),
		TLSClientConfig: rest.TLSClientConfig{CAData: certificate, CertData: client.Crt, KeyData: client.Key},
	}
}
