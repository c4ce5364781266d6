package credentials

import (
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// otherBundle is what somebody puts in the place of the bundle of a cluster.
var otherBundle = sync.OnceValues(func() (*secrets.Bundle, error) { return secrets.NewBundle(start, "v1.13", nil) })

// TestTheKeyOfAMachineIsNeverReplacedByThatOfAnotherCA: it is the only one with
// which a machine that has its configuration can be wiped.
func TestTheKeyOfAMachineIsNeverReplacedByThatOfAnotherCA(t *testing.T) {
	const late = 200 * 24 * time.Hour
	ensure := func(f *fixture) error { return f.EnsureAdmin(f.t.Context(), cluster, f.host) }
	renew := func(f *fixture) error { return f.RenewAdmin(f.t.Context(), cluster, f.host) }
	for name, c := range map[string]struct {
		// free says that the machine has no configuration.
		free bool
		// meanwhile happens after the bundle was changed.
		meanwhile func(g Gomega, f *fixture)
		do        func(f *fixture) error
		replaced  bool
	}{
		"not when it is due":                           {do: renew},
		"not when the configuration is sent again":     {do: ensure},
		"not when somebody has stripped the Secret":    {do: renew, meanwhile: strip},
		"but where the machine has no configuration":   {do: ensure, free: true, replaced: true},
		"but where the Secret holds no key to be lost": {do: renew, meanwhile: garble, replaced: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t)
			g.Expect(f.EnsureAdmin(t.Context(), cluster, f.host)).To(Succeed())
			before, err := f.Admin(t.Context(), f.host)
			g.Expect(err).NotTo(HaveOccurred())
			if !c.free {
				f.host.Spec.Handover = infrav1.HostHandover{ProviderID: "talos://one", Progress: infrav1.HandoverRan}
			}
			other, err := otherBundle()
			g.Expect(err).NotTo(HaveOccurred())
			f.bundle.Data[secrets.BundleKey] = other.YAML()
			g.Expect(f.client.Update(t.Context(), f.bundle)).To(Succeed())
			f.clock.SetTime(start.Add(late))
			if c.meanwhile != nil {
				c.meanwhile(g, f)
			}

			g.Expect(c.do(f)).To(Succeed())
			after, err := f.Admin(t.Context(), f.host)
			g.Expect(err).NotTo(HaveOccurred())
			if c.replaced {
				g.Expect(after.CA).To(Equal(other.TalosCA()))
				return
			}
			g.Expect(after).To(Equal(before))
			g.Expect(isBound(f.admin(), f.host)).To(BeTrue())
		})
	}
}

func strip(g Gomega, f *fixture) {
	stripped := f.admin()
	stripped.OwnerReferences, stripped.Finalizers = nil, nil
	g.Expect(f.client.Update(f.t.Context(), stripped)).To(Succeed())
}

func garble(g Gomega, f *fixture) {
	garbled := f.admin()
	garbled.Data = map[string][]byte{infrav1.AdminSecretKey: []byte("none")}
	g.Expect(f.client.Update(f.t.Context(), garbled)).To(Succeed())
}
