package kubeconfig_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/kubeconfig"
)

// written is a kubeconfig with a token, after some changes.
func written(g *WithT, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	cluster := &clientcmdapi.Cluster{Server: "https://192.0.2.1:6443", CertificateAuthorityData: []byte("pem"), ProxyURL: "https://proxy.example.com"}
	user := &clientcmdapi.AuthInfo{Token: "hunter2", ClientCertificateData: []byte("pem"), ClientKeyData: []byte("pem")}
	if change != nil {
		change(cluster, user)
	}
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": cluster}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	})
	g.Expect(err).NotTo(HaveOccurred())

	return content
}

// TestAKubeconfigThatReachesForTheManagerIsRefused: its author would be sent what the
// manager has there.
func TestAKubeconfigThatReachesForTheManagerIsRefused(t *testing.T) {
	for field, change := range map[string]func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo){
		"certificate-authority": func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthority = "/dev/zero" },
		"tokenFile": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.Token, u.TokenFile = "", "/var/run/secrets/kubernetes.io/serviceaccount/token"
		},
		"client-certificate": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.ClientCertificateData, u.ClientCertificate = nil, "/tmp/k8s-webhook-server/serving-certs/tls.crt"
		},
		"client-key": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.ClientKeyData, u.ClientKey = nil, "/tmp/k8s-webhook-server/serving-certs/tls.key"
		},
		"exec": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.Exec = &clientcmdapi.ExecConfig{Command: "manager", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
		},
		"auth-provider": func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		},
	} {
		t.Run(field, func(t *testing.T) {
			g := NewWithT(t)
			err := kubeconfig.Check(written(g, change))
			g.Expect(err).To(MatchError(kubeconfig.ErrNotSelfContained))
			g.Expect(err).To(MatchError(And(ContainSubstring("the field "+field+":"), Not(ContainSubstring("hunter2")))))
		})
	}
	g := NewWithT(t)
	g.Expect(kubeconfig.Check(written(g, nil))).To(Succeed())
	g.Expect(kubeconfig.Check([]byte("hunter2: ["))).To(MatchError("reading the kubeconfig: it is none"))
}

func TestOnlyKubeconfigsAreChecked(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	reaching := written(g, func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { u.TokenFile = "/token" })
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Data: data}
	}
	reader := kubeconfig.NewReader(fake.NewClientBuilder().WithObjects(
		secret("good-kubeconfig", map[string][]byte{"value": written(g, nil)}), secret("bad-kubeconfig", map[string][]byte{"value": reaching}),
		secret("empty-kubeconfig", nil), secret("values", map[string][]byte{"value": reaching}),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other-kubeconfig"}, Data: map[string]string{"value": string(reaching)}},
	).Build())
	for _, name := range []string{"good-kubeconfig", "empty-kubeconfig", "values"} {
		found := &corev1.Secret{}
		g.Expect(reader.Get(ctx, client.ObjectKey{Namespace: "a", Name: name}, found)).To(Succeed())
		g.Expect(found.Name).To(Equal(name))
	}
	g.Expect(reader.Get(ctx, client.ObjectKey{Namespace: "a", Name: "other-kubeconfig"}, &corev1.ConfigMap{})).To(Succeed())
	found := &corev1.Secret{}
	g.Expect(reader.Get(ctx, client.ObjectKey{Namespace: "a", Name: "bad-kubeconfig"}, found)).To(And(
		MatchError(ContainSubstring("using Secret a/bad-kubeconfig")), MatchError(kubeconfig.ErrNotSelfContained)))
	g.Expect(found.Data).To(BeEmpty())
	g.Expect(reader.Get(ctx, client.ObjectKey{Namespace: "a", Name: "none-kubeconfig"}, found)).NotTo(Succeed())
}
