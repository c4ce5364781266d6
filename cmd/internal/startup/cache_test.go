package startup

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// TestCachesKeepTheSecretsThatTheirManagerReads: and those alone.
func TestCachesKeepTheSecretsThatTheirManagerReads(t *testing.T) {
	for name, c := range map[string]struct {
		program Program
		kept    []string
	}{
		"a manager that reads none":  {program: Program{}},
		"a manager that reads some":  {program: Program{CachedSecrets: []string{"-talos", "-ca"}}, kept: []string{"one-talos", "one-ca"}},
		"a manager with connections": {program: Program{NeedsClusterCache: true}, kept: []string{"one-kubeconfig"}},
		"a manager that needs both":  {program: Program{NeedsClusterCache: true, CachedSecrets: []string{"-values"}}, kept: []string{"one-kubeconfig", "one-values"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme := NewWithT(t), runtime.NewScheme()
			c.program.Name = name // Informers of a process have names of their own.
			g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
			var kept []string
			for object, byObject := range cacheOptions(scheme, c.program, &options{}).ByObject {
				if _, isSecret := object.(*corev1.Secret); !isSecret {
					continue
				}
				for _, secret := range []string{"one-talos", "one-ca", "one-kubeconfig", "one-values", "talos", "one-talos-admin"} {
					transformed, err := byObject.Transform(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}, Data: map[string][]byte{"k": nil}})
					g.Expect(err).NotTo(HaveOccurred())
					if len(transformed.(*corev1.Secret).Data) > 0 { //nolint:forcetypeassert // The type is part of what is tested.
						kept = append(kept, secret)
					}
				}
			}
			g.Expect(kept).To(ConsistOf(c.kept))
		})
	}
}

// TestAManagerThatFollowsSecretsKnowsThemAll: and the others only those of clusters.
func TestAManagerThatFollowsSecretsKnowsThemAll(t *testing.T) {
	for _, watches := range []bool{false, true} {
		g, scheme := NewWithT(t), runtime.NewScheme()
		g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
		program := Program{Name: fmt.Sprint("follows ", watches), WatchesSecrets: watches}
		for object, byObject := range cacheOptions(scheme, program, &options{}).ByObject {
			if _, isSecret := object.(*corev1.Secret); isSecret {
				g.Expect(byObject.Label == nil).To(Equal(watches))
			}
		}
	}
}
