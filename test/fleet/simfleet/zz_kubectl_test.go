package simfleet_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/talossim"
)

func TestZZKubectl(t *testing.T) {
	l := newLife(t, talossim.Container)
	hosts, _ := l.machines.Add(t.Context(), 2)
	l.configure(t, hosts[0], configgen.RoleControlPlane)
	l.do(t, hosts[0], func(node talosclient.Node) error { return node.Bootstrap(t.Context()) })
	l.configure(t, hosts[1], configgen.RoleWorker)
	l.expectNode(t, hosts[1].Name, corev1.ConditionTrue)
	c := kubeconfig(l.WithT, l.bundle, l.endpoint)
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["a"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	cfg.AuthInfos["a"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	cfg.Contexts["a"] = &clientcmdapi.Context{Cluster: "a", AuthInfo: "a"}
	cfg.CurrentContext = "a"
	path := filepath.Join(t.TempDir(), "kc")
	l.Expect(clientcmd.WriteToFile(*cfg, path)).To(Succeed())
	for _, args := range [][]string{{"version"}, {"get", "nodes", "-o", "wide"}, {"get", "node", "host-2"}, {"get", "pods", "-A"}, {"get", "ns"}, {"cordon", "host-2"}, {"label", "node", "host-2", "a=b"}, {"taint", "node", "host-2", "x=y:NoSchedule"}, {"taint", "node", "host-2", "x-"}, {"get", "nodes"}, {"describe", "node", "host-2"}, {"delete", "node", "host-2"}, {"get", "nodes", "-o", "json"}, {"get", "node", "nope"}} {
		out, err := exec.Command(os.Getenv("KUBECTL"), append([]string{"--kubeconfig", path}, args...)...).CombinedOutput()
		if len(out) > 1500 { out = out[:1500] }
		t.Logf("$ kubectl %v  err=%v\n%s", args, err, out)
	}
}
