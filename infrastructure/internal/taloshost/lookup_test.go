package taloshost

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// cacheOf is a cache with some hosts, and how many of them it was asked for.
func cacheOf(g *WithT, hosts []infrav1.TalosHost) (Lookup, *int) {
	scheme, listed := runtime.NewScheme(), 0
	g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for field, keys := range Indexes() {
		builder.WithIndex(&infrav1.TalosHost{}, field, keys)
	}
	for i := range hosts {
		builder.WithObjects(hosts[i].DeepCopy())
	}
	reader := builder.WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, list, options...)
			if hosts, ok := list.(*infrav1.TalosHostList); ok {
				listed += len(hosts.Items)
			}
			return err
		},
	}).Build()

	return Lookup{Cached: reader, Live: reader}, &listed
}

// anyHost is a host of few addresses and identities, so that it is often a duplicate.
func anyHost(random *rand.Rand, number int) infrav1.TalosHost {
	address := func() string {
		return []string{"192.0.2.1", "192.0.2.2", "::ffff:192.0.2.2", "192.0.2.3", "node.example.com", "NODE.example.com"}[random.IntN(6)]
	}
	identity := func() infrav1.HostIdentity {
		return []infrav1.HostIdentity{
			{}, {UUID: uuidA}, {UUID: uuidB}, {MACAddresses: []string{macA}}, {UUID: uuidA, MACAddresses: []string{macB}}, {UUID: "00000000-0000-0000-0000-000000000000"},
		}[random.IntN(6)]
	}
	made := infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{
		Namespace: []string{"ns", "tenant"}[random.IntN(2)], Name: fmt.Sprint("h", number), UID: types.UID(fmt.Sprint(number)),
		CreationTimestamp: metav1.Unix(1<<30+random.Int64N(3), 0),
	}}
	made.Spec.Addresses, made.Spec.Identity = []string{address(), address()}, identity()
	made.Status.Address = address()
	if random.IntN(2) == 0 {
		told := identity()
		made.Status.Hardware.SystemUUID = told.UUID
		for _, mac := range told.MACAddresses {
			made.Status.Hardware.Links = append(made.Status.Hardware.Links, infrav1.HostLink{Name: "eno1", HardwareAddress: mac})
		}
	}
	switch random.IntN(4) {
	case 0:
		made.Spec.ConsumerRef.Name = "m"
	case 1:
		made.Spec.ConsumerRef.Name, made.Spec.Handover = "m", infrav1.HostHandover{ProviderID: "talos://1", Identity: identity()}
	}
	if random.IntN(4) == 0 {
		made.Status.Conditions = []metav1.Condition{{Type: infrav1.IdentityVerifiedCondition, Reason: infrav1.IdentityDuplicateReason}}
	}

	return made
}

// TestTheIndexFindsWhatIsThere: by the index the same hosts are found as by looking at
// all of them.
func TestTheIndexFindsWhatIsThere(t *testing.T) {
	for seed := range uint64(40) {
		g, random := NewWithT(t), rand.New(rand.NewPCG(seed, 1))
		var hosts []infrav1.TalosHost
		for i := range 8 {
			hosts = append(hosts, anyHost(random, i))
		}
		hosts = ordered(hosts)
		lookup, _ := cacheOf(g, hosts)
		for i := range hosts {
			host, told := &hosts[i], KnownIdentity(&hosts[random.IntN(len(hosts))])
			used := lookup.InUse(t.Context(), host.Namespace)

			found, err := lookup.Duplicate(t.Context(), host, told)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(nameOf(found)).To(Equal(nameOf(DuplicateOf(host, told, hosts, used))), "seed %d", seed)

			found, err = lookup.DuplicateInUse(t.Context(), host, told)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(nameOf(found)).To(Equal(nameOf(DuplicateInUse(host, told, hosts, used))), "seed %d", seed)

			for _, find := range []func(context.Context, *infrav1.TalosHost, infrav1.HostIdentity) (*infrav1.TalosHost, error){lookup.DuplicateAhead, lookup.DuplicateAheadNow} {
				found, err = find(t.Context(), host, told)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(nameOf(found)).To(Equal(nameOf(DuplicateAhead(host, told, hosts, used))), "seed %d", seed)
			}

			var affected, wanted, ofNamespace []string
			others, err := lookup.Affected(t.Context(), host)
			g.Expect(err).NotTo(HaveOccurred())
			for n := range others {
				affected = append(affected, nameOf(&others[n]))
			}
			var beside []infrav1.TalosHost
			for n := range hosts {
				other := &hosts[n]
				if AreDuplicates(host, KnownIdentity(host), other, RecordsUse) || AreDuplicates(other, KnownIdentity(other), host, RecordsUse) ||
					(wasDuplicate(other) && other.UID != host.UID) {
					wanted = append(wanted, nameOf(other))
				}
				if other.Namespace == host.Namespace {
					beside = append(beside, *other)
				}
			}
			g.Expect(affected).To(Equal(wanted), "seed %d", seed)

			ambiguous, err := lookup.AmbiguousUUIDs(host.Namespace)(t.Context(), uuidA, uuidB, "")
			g.Expect(err).NotTo(HaveOccurred())
			for _, uuid := range []string{uuidA, uuidB} {
				if isAmbiguous(uuid, beside) {
					ofNamespace = append(ofNamespace, uuid)
				}
			}
			g.Expect(ambiguous).To(Equal(ofNamespace), "seed %d", seed)
		}
	}
}

// TestWhichHostsOfAnotherNamespaceAreInUse: records of others count as far as a
// TalosMachine bears them out, and what cannot be read counts as in use.
func TestWhichHostsOfAnotherNamespaceAreInUse(t *testing.T) {
	failing := errors.New("no connection")
	tests := map[string]struct {
		claimed, machine string
		name             string
		err              error
		inUse            bool
	}{
		"the machine has the provider ID of the claim": {name: "m", claimed: "talos://1", machine: "talos://1", inUse: true},
		"it has another":                               {name: "m", claimed: "talos://1", machine: "talos://2"},
		"it does not exist":                            {name: "other", claimed: "talos://1", machine: "talos://1"},
		"the claim has no provider ID":                 {name: "m"},
		"nobody is asked about a machine without name": {claimed: "talos://1", err: failing},
		"it cannot be read":                            {name: "m", claimed: "talos://1", machine: "talos://2", err: failing, inUse: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			lookup, _ := cacheOf(g, nil)
			lookup.Live = interceptor.NewClient(lookup.Live.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if tt.err != nil {
						return tt.err
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			machine := &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "m"}}
			machine.Spec.ProviderID = tt.machine
			g.Expect(lookup.Cached.(client.Client).Create(t.Context(), machine)).To(Succeed())
			host := &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "h"}}
			host.Spec.ConsumerRef.Name, host.Spec.ConsumerRef.ProviderID = tt.name, tt.claimed
			host.Spec.Release.Policy = infrav1.ReleaseWipeSystem

			g.Expect(lookup.InUse(t.Context(), "ns")(host)).To(Equal(tt.inUse))
			g.Expect(lookup.InUse(t.Context(), "tenant")(host)).To(BeTrue(), "the records of the namespace are believed")
		})
	}
}

func nameOf(host *infrav1.TalosHost) string {
	if host == nil {
		return "none"
	}

	return host.Namespace + "/" + host.Name
}

// TestARackIsNotLookedThroughForEachOfItsHosts: how many hosts are looked at for one does
// not grow with how many there are.
func TestARackIsNotLookedThroughForEachOfItsHosts(t *testing.T) {
	g := NewWithT(t)
	lookedAt := func(size int) int {
		var rack []infrav1.TalosHost
		for i := range size {
			rack = append(rack, host(fmt.Sprintf("h%03d", i), fmt.Sprintf("192.0.2.%d", i), tells(fmt.Sprintf("4c4c4544-0042-3510-8053-b4c04f4d4e%02x", i)),
				func(h *infrav1.TalosHost) {
					h.Status.Hardware.Links = []infrav1.HostLink{{Name: "eno1", HardwareAddress: fmt.Sprintf("b0:26:28:00:00:%02x", i)}}
				}))
		}
		lookup, listed := cacheOf(g, rack)
		of := &rack[size/2]
		told := KnownIdentity(of)
		for _, find := range []func() error{
			func() error { _, err := lookup.Duplicate(t.Context(), of, told); return err },
			func() error { _, err := lookup.DuplicateInUse(t.Context(), of, told); return err },
			func() error { _, err := lookup.DuplicateAhead(t.Context(), of, told); return err },
			func() error { _, err := lookup.Affected(t.Context(), of); return err },
			func() error { _, err := lookup.AmbiguousUUIDs("ns")(t.Context(), told.UUID); return err },
		} {
			g.Expect(find()).To(Succeed())
		}
		return *listed
	}
	const keys, searches = 3, 4 // Address, UUID and hardware address; the UUID alone beside.
	g.Expect(lookedAt(10)).To(Equal(keys*searches + 1))
	g.Expect(lookedAt(200)).To(Equal(keys*searches + 1))
}
