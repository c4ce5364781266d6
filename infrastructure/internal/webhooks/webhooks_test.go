package webhooks

import (
	"context"
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const managerUser = "system:serviceaccount:capt-infrastructure-system:capt-infrastructure-manager"

func as(ctx context.Context, user string, dryRun bool) context.Context {
	return admission.NewContextWithRequest(ctx, admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: user}, DryRun: ptr.To(dryRun),
	}})
}

func host(changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	h := &infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"},
		Spec:       infrav1.TalosHostSpec{Addresses: []string{"192.0.2.1"}},
	}
	for _, change := range changes {
		change(h)
	}

	return h
}

func claimed(h *infrav1.TalosHost) {
	h.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: "ns", Name: "m", ProviderID: "talos://1"}
}

func handedOver(h *infrav1.TalosHost) {
	claimed(h)
	h.Spec.Handover = infrav1.HostHandover{ProviderID: "talos://1", Progress: infrav1.HandoverRan, MaintenanceCertFingerprint: "boot-1"}
}

func TestHostSpec(t *testing.T) {
	tests := map[string]struct {
		change func(*infrav1.TalosHostSpec)
		field  string
	}{
		"an IP address is fine":                {change: func(s *infrav1.TalosHostSpec) { s.Addresses = []string{"2001:db8::1"} }},
		"a DNS name is fine":                   {change: func(s *infrav1.TalosHostSpec) { s.Addresses = []string{"node-1.example.com"} }},
		"an address with a port is refused":    {change: func(s *infrav1.TalosHostSpec) { s.Addresses = []string{"192.0.2.1:50000"} }, field: "spec.addresses[0]"},
		"an address that is none is refused":   {change: func(s *infrav1.TalosHostSpec) { s.Addresses = []string{"192.0.2.300"} }, field: "spec.addresses[0]"},
		"a placeholder as identity is refused": {change: func(s *infrav1.TalosHostSpec) { s.Identity.UUID = "03000200-0400-0500-0006-000700080009" }, field: "spec.identity.uuid"},
		"a static address needs its prefix":    {change: func(s *infrav1.TalosHostSpec) { s.Network.Addresses = []string{"192.0.2.1"} }, field: "spec.network.addresses[0]"},
		"a gateway is an IP address":           {change: func(s *infrav1.TalosHostSpec) { s.Network.Gateway = "router" }, field: "spec.network.gateway"},
		"a nameserver is an IP address":        {change: func(s *infrav1.TalosHostSpec) { s.Network.Nameservers = []string{"192.0.2.53", "dns"} }, field: "spec.network.nameservers[1]"},
		"a strategic patch is fine": {change: func(s *infrav1.TalosHostSpec) {
			s.StrategicPatches = []string{"machine:\n  sysctls:\n    vm.swappiness: \"1\"\n"}
		}},
		"a patch that is no configuration is refused": {change: func(s *infrav1.TalosHostSpec) {
			s.StrategicPatches = []string{"machine:\n  sysctls:\n    vm.swappiness: \"1\"\n", "machine:\n  bogus: true\n"}
		}, field: "spec.strategicPatches[1]"},
		"a JSON patch is refused": {change: func(s *infrav1.TalosHostSpec) {
			s.StrategicPatches = []string{`[{"op":"remove","path":"/machine/install"}]`}
		}, field: "spec.strategicPatches[0]"},
		"aliases that stand for little are fine": {change: func(s *infrav1.TalosHostSpec) { s.StrategicPatches = []string{aliases(7)} }},
		"aliases that stand for much are refused": {change: func(s *infrav1.TalosHostSpec) {
			s.StrategicPatches = []string{aliases(7), aliases(9)}
		}, field: "spec.strategicPatches[1]: Invalid value: \"\": it is too large when its aliases are written out"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := &TalosHost{Manager: managerUser}
			h := host(func(h *infrav1.TalosHost) { tt.change(&h.Spec) })
			_, created := w.ValidateCreate(t.Context(), h)
			_, updated := w.ValidateUpdate(as(t.Context(), "user", false), host(func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"192.0.2.9"} }), h)
			for _, err := range []error{created, updated} {
				if tt.field == "" {
					g.Expect(err).NotTo(HaveOccurred())
					continue
				}
				g.Expect(err).To(MatchError(ContainSubstring(tt.field)))
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
			}
		})
	}
}

// TestNetworksThatNoMachineCanHave: each is refused, unless it is there already.
func TestNetworksThatNoMachineCanHave(t *testing.T) {
	const network, nobody = "is the address of a network, not of a machine: name the machine's own, for example 192.0.2.10/24", "must be an address that one machine can have"
	const own, family = "is the machine's own address", "is of a family of which no address is stated"
	of := func(gateway string, addresses ...string) infrav1.HostNetwork {
		return infrav1.HostNetwork{Interface: "eno1", Addresses: addresses, Gateway: gateway}
	}
	for name, tt := range map[string]struct {
		network     infrav1.HostNetwork
		field, want string
	}{
		"the first address of a network":       {of("", "192.0.2.10/24", "192.0.2.0/24"), "spec.network.addresses[1]", network},
		"its last address":                     {of("", "192.0.2.255/24"), "spec.network.addresses[0]", network},
		"the last address of a small network":  {of("", "192.0.2.11/30"), "spec.network.addresses[0]", network},
		"multicast":                            {of("", "224.0.0.1/24"), "spec.network.addresses[0]", nobody},
		"multicast of IPv6":                    {of("", "ff02::1/64"), "spec.network.addresses[0]", nobody},
		"loopback":                             {of("", "127.0.0.1/8"), "spec.network.addresses[0]", nobody},
		"no address":                           {of("", "::/0"), "spec.network.addresses[0]", nobody},
		"its own address as gateway":           {of("192.0.2.10", "192.0.2.9/24", "192.0.2.10/24"), "spec.network.gateway", own},
		"a gateway of IPv4 for IPv6":           {of("192.0.2.1", "2001:db8::10/64"), "spec.network.gateway", family},
		"a gateway of IPv6 for IPv4":           {of("2001:db8::1", "192.0.2.10/24"), "spec.network.gateway", family},
		"a multicast gateway":                  {of("224.0.0.1", "192.0.2.10/24"), "spec.network.gateway", nobody},
		"an address inside a large network":    {of("", "10.0.1.0/16"), "", ""},
		"an address with 255 at its end":       {of("", "10.0.0.255/16"), "", ""},
		"both ends of a point-to-point link":   {of("192.0.2.1", "192.0.2.0/31"), "", ""},
		"the other end of it":                  {of("192.0.2.0", "192.0.2.1/31"), "", ""},
		"a single address":                     {of("192.0.2.1", "192.0.2.255/32"), "", ""},
		"zeros at the end of IPv6":             {of("", "2001:db8::/64"), "", ""},
		"a gateway outside the network":        {of("198.51.100.1", "192.0.2.10/24"), "", ""},
		"a gateway of one of two families":     {of("2001:db8::1", "192.0.2.10/24", "2001:db8::10/64"), "", ""},
		"a link-local router of IPv6 for IPv4": {of("fe80::1", "192.0.2.10/24"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, h := NewWithT(t), host(func(h *infrav1.TalosHost) { h.Spec.Network = tt.network })
			w, user := &TalosHost{Manager: managerUser}, as(t.Context(), "user", false)
			_, created := w.ValidateCreate(t.Context(), h)
			_, updated := w.ValidateUpdate(user, host(), h)
			for _, err := range []error{created, updated} {
				if tt.field == "" {
					g.Expect(err).NotTo(HaveOccurred())
					continue
				}
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
				g.Expect(err).To(MatchError(And(ContainSubstring(tt.field+":"), ContainSubstring(tt.want))))
			}
			changed := h.DeepCopy()
			changed.Spec.Unschedulable, changed.Spec.Network.Nameservers = ptr.To(true), []string{"192.0.2.53"}
			_, err := w.ValidateUpdate(user, h, changed)
			g.Expect(err).NotTo(HaveOccurred(), "what is stored already stays")
		})
	}
}

// aliases is a patch that states a text of 130 kB several times.
func aliases(times int) string {
	return "machine: {certSANs: [&a " + strings.Repeat("x", 130_000) + strings.Repeat(", *a", times-1) + "]}"
}

// TestAStoredPatchOfAHostStays: who changes something else is not asked about it.
func TestAStoredPatchOfAHostStays(t *testing.T) {
	g := NewWithT(t)
	w := &TalosHost{Manager: managerUser}
	stored := host(func(h *infrav1.TalosHost) { h.Spec.StrategicPatches = []string{aliases(9)} })
	changed := stored.DeepCopy()
	changed.Spec.Network.Nameservers = []string{"192.0.2.53"}
	_, err := w.ValidateUpdate(as(t.Context(), "user", false), stored, changed)
	g.Expect(err).NotTo(HaveOccurred())
	changed.Spec.StrategicPatches = append(changed.Spec.StrategicPatches, aliases(10))
	_, err = w.ValidateUpdate(as(t.Context(), "user", false), stored, changed)
	g.Expect(err).To(MatchError(ContainSubstring("spec.strategicPatches[1]")))
}

func TestHostUpdate(t *testing.T) {
	release := func(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem }
	wiped := func(h *infrav1.TalosHost) {
		h.Spec.Wiped = []infrav1.HostWipe{{ProviderID: "talos://0", ProvenAt: metav1.Unix(1, 0)}}
	}
	reprovisioned := func(h *infrav1.TalosHost) {
		h.Spec.Reprovision = infrav1.HostReprovision{ClusterName: "one", Previous: infrav1.HostHandover{ProviderID: "talos://1"}}
	}
	tests := map[string]struct {
		before *infrav1.TalosHost
		change func(*infrav1.TalosHost)
		user   string
		field  string
	}{
		"the manager claims":                      {before: host(), change: claimed, user: managerUser},
		"nobody else claims":                      {before: host(), change: claimed, field: "spec.consumerRef"},
		"nobody else gives back":                  {before: host(claimed), change: func(h *infrav1.TalosHost) { h.Spec.ConsumerRef = infrav1.ConsumerReference{} }, field: "spec.consumerRef"},
		"nobody else takes a hand-over back":      {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Spec.Handover = infrav1.HostHandover{} }, field: "spec.handover"},
		"nobody else asks for a wipe":             {before: host(handedOver), change: release, field: "spec.release"},
		"the manager asks for a wipe":             {before: host(handedOver), change: release, user: managerUser},
		"nobody else ends a quarantine":           {before: host(), change: func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.Unix(1, 0) }, field: "spec.quarantine"},
		"nobody else says that a host is wiped":   {before: host(), change: wiped, field: "spec.wiped"},
		"nobody else takes a proof away":          {before: host(wiped), change: func(h *infrav1.TalosHost) { h.Spec.Wiped = nil }, field: "spec.wiped"},
		"the manager says that a host is wiped":   {before: host(), change: wiped, user: managerUser},
		"a wiped host is marked unschedulable":    {before: host(wiped), change: func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) }},
		"nobody else re-provisions":               {before: host(handedOver), change: reprovisioned, field: "spec.reprovision"},
		"the manager re-provisions":               {before: host(handedOver), change: reprovisioned, user: managerUser},
		"the address of a host in between is not": {before: host(claimed, reprovisioned), change: func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"192.0.2.2"} }, field: "spec.addresses"},
		"the identity of a host in between isn't": {before: host(claimed, reprovisioned), change: func(h *infrav1.TalosHost) { h.Spec.Identity.SerialNumber = "X" }, field: "spec.identity"},
		"the address of a free host is changed":   {before: host(), change: func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"192.0.2.2"} }},
		"the address of a used host is not":       {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"192.0.2.2"} }, field: "spec.addresses"},
		"the identity of a used host is not":      {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Spec.Identity.SerialNumber = "X" }, field: "spec.identity"},
		"the static address of a used host isn't": {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Spec.Network.Addresses = []string{"192.0.2.2/24"} }, field: "spec.network.addresses"},
		"a used host is marked unschedulable":     {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) }},
		"clusterctl marks a used host":            {before: host(handedOver), change: func(h *infrav1.TalosHost) { h.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""} }},
		"clusterctl strips a used host":           {before: host(handedOver, func(h *infrav1.TalosHost) { h.Finalizers = []string{"x"} }), change: func(h *infrav1.TalosHost) { h.Finalizers = nil }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			after := tt.before.DeepCopy()
			tt.change(after)
			if tt.user == "" {
				tt.user = "user"
			}
			_, err := (&TalosHost{Manager: managerUser}).ValidateUpdate(as(t.Context(), tt.user, false), tt.before, after)
			if tt.field == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.field)))
		})
	}
}

func TestHostDelete(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	terminating := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Finalizers: []string{"x"}, DeletionTimestamp: ptr.To(metav1.Unix(1, 0))}}
	consumer := func(providerID string) *infrav1.TalosMachine {
		return &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}, Spec: infrav1.TalosMachineSpec{ProviderID: providerID}}
	}
	tests := map[string]struct {
		host    *infrav1.TalosHost
		objects []client.Object
		err     error
		refused bool
	}{
		"a free host goes":                         {host: host(), objects: []client.Object{namespace}},
		"a host in use stays":                      {host: host(handedOver), objects: []client.Object{namespace, consumer("talos://1")}, refused: true},
		"a claimed host stays":                     {host: host(claimed), objects: []client.Object{namespace, consumer("talos://1")}, refused: true},
		"it goes with its namespace":               {host: host(handedOver), objects: []client.Object{terminating, consumer("talos://1")}},
		"it goes after a move":                     {host: host(handedOver, func(h *infrav1.TalosHost) { h.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""} }), objects: []client.Object{namespace, consumer("talos://1")}},
		"it goes when its TalosMachine is gone":    {host: host(handedOver), objects: []client.Object{namespace}},
		"it goes when its TalosMachine is another": {host: host(handedOver), objects: []client.Object{namespace, consumer("talos://2")}},
		"it stays while nobody can tell":           {host: host(handedOver), objects: []client.Object{namespace}, err: errors.New("time-out"), refused: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
			g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
			g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.objects...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if tt.err != nil {
						return tt.err
					}
					return c.Get(ctx, key, o, opts...)
				},
			}).Build()
			_, err := (&TalosHost{Manager: managerUser, Reader: reader}).ValidateDelete(t.Context(), tt.host)
			if tt.refused {
				g.Expect(err).To(HaveOccurred())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestWhatIsImmutable(t *testing.T) {
	machine := func(policy infrav1.ReleasePolicy, hostName string, claim infrav1.HostClaim) *infrav1.TalosMachine {
		return &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{
			ProviderID: "talos://1", Metal: &infrav1.TalosMachineMetalSpec{ReleasePolicy: policy},
			HostRef: infrav1.TalosMachineHostReference{Name: hostName, Claim: claim},
		}}
	}
	template := func(policy infrav1.ReleasePolicy) *infrav1.TalosMachineTemplate {
		return &infrav1.TalosMachineTemplate{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{clusterv1.TopologyDryRunAnnotation: ""}},
			Spec: infrav1.TalosMachineTemplateSpec{Template: infrav1.TalosMachineTemplateResource{Spec: infrav1.TalosMachineSpec{
				Metal: &infrav1.TalosMachineMetalSpec{ReleasePolicy: policy},
			}}},
		}
	}
	clusterTemplate := func(name string) *infrav1.TalosClusterTemplate {
		return &infrav1.TalosClusterTemplate{Spec: infrav1.TalosClusterTemplateSpec{Template: infrav1.TalosClusterTemplateResource{
			Spec: infrav1.TalosClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: name, Port: 6443}},
		}}}
	}
	const wipe, retain, intended, bound = infrav1.ReleaseWipeSystem, infrav1.ReleaseRetain, infrav1.HostClaimIntended, infrav1.HostClaimBound
	tests := map[string]struct {
		update  func(context.Context) error
		dryRun  bool
		refused bool
	}{
		"the claim of a TalosMachine is made": {update: func(ctx context.Context) error {
			_, err := (&TalosMachine{}).ValidateUpdate(ctx, machine(wipe, "h", intended), machine(wipe, "h", bound))
			return err
		}},
		"the host of a TalosMachine is not changed": {update: func(ctx context.Context) error {
			_, err := (&TalosMachine{}).ValidateUpdate(ctx, machine(wipe, "h", bound), machine(wipe, "i", bound))
			return err
		}, refused: true},
		"the specification of a TalosMachine is not changed": {update: func(ctx context.Context) error {
			_, err := (&TalosMachine{}).ValidateUpdate(ctx, machine(wipe, "", ""), machine(retain, "", ""))
			return err
		}, refused: true},
		"a TalosMachineTemplate is not changed": {update: func(ctx context.Context) error {
			_, err := (&TalosMachineTemplate{}).ValidateUpdate(ctx, template(wipe), template(retain))
			return err
		}, refused: true},
		"a TalosMachineTemplate is changed in a dry run of the topology": {update: func(ctx context.Context) error {
			_, err := (&TalosMachineTemplate{}).ValidateUpdate(ctx, template(wipe), template(retain))
			return err
		}, dryRun: true},
		"a TalosClusterTemplate is not changed": {update: func(ctx context.Context) error {
			_, err := (&TalosClusterTemplate{}).ValidateUpdate(ctx, clusterTemplate("a"), clusterTemplate("b"))
			return err
		}, refused: true},
		"an endpoint with a scheme is refused": {update: func(ctx context.Context) error {
			_, err := (&TalosClusterTemplate{}).ValidateCreate(ctx, clusterTemplate("https://a"))
			return err
		}, refused: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.update(as(t.Context(), "user", tt.dryRun))
			NewWithT(t).Expect(err != nil).To(Equal(tt.refused), "%v", err)
		})
	}
}

func TestContainerSpec(t *testing.T) {
	list := func(memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for name, tt := range map[string]struct {
		change func(*infrav1.TalosMachineContainerSpec)
		field  string
	}{
		"no more than the release is fine": {change: func(*infrav1.TalosMachineContainerSpec) {}},
		"requests below the limits are fine": {change: func(s *infrav1.TalosMachineContainerSpec) {
			s.Resources = infrav1.ContainerResources{Requests: list("1Gi"), Limits: list("2Gi")}
		}},
		"requests above the limits are refused": {change: func(s *infrav1.TalosMachineContainerSpec) {
			s.Resources = infrav1.ContainerResources{Requests: list("3Gi"), Limits: list("2Gi")}
		}, field: "spec.container.resources.requests[memory]"},
		"a limit of nothing is refused":    {change: func(s *infrav1.TalosMachineContainerSpec) { s.Resources.Limits = list("0") }, field: "spec.container.resources.limits[memory]"},
		"a negative request is refused":    {change: func(s *infrav1.TalosMachineContainerSpec) { s.Resources.Requests = list("-1Gi") }, field: "spec.container.resources.requests[memory]"},
		"a label that is none is refused":  {change: func(s *infrav1.TalosMachineContainerSpec) { s.NodeSelector = map[string]string{"a b": "c"} }, field: "spec.container.nodeSelector"},
		"a Pod label that is none as well": {change: func(s *infrav1.TalosMachineContainerSpec) { s.PodMetadata.Labels = map[string]string{"a": "b c"} }, field: "spec.container.podMetadata.labels"},
		"a volume of no size is refused": {change: func(s *infrav1.TalosMachineContainerSpec) {
			s.Storage = infrav1.ContainerStorage{Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{Size: resource.MustParse("0")}}
		}, field: "spec.container.storage.volumeClaim.size"},
	} {
		t.Run(name, func(t *testing.T) {
			g, machine := NewWithT(t), &infrav1.TalosMachine{}
			machine.Spec.Container = &infrav1.TalosMachineContainerSpec{Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9"}}
			tt.change(machine.Spec.Container)
			_, err := (&TalosMachine{Manager: managerUser}).ValidateCreate(t.Context(), machine)
			if tt.field == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
			g.Expect(err).To(MatchError(ContainSubstring(tt.field)))
		})
	}
}

func TestAnnotationsOfTheControlPlaneService(t *testing.T) {
	g, cluster := NewWithT(t), &infrav1.TalosCluster{}
	cluster.Spec.Container = &infrav1.TalosClusterContainerSpec{}
	cluster.Spec.Container.ControlPlaneService.Annotations = map[string]string{"example.com/pool": "a"}
	_, err := (&TalosCluster{}).ValidateCreate(t.Context(), cluster)
	g.Expect(err).NotTo(HaveOccurred())
	cluster.Spec.Container.ControlPlaneService.Annotations["no key"] = "a"
	_, err = (&TalosCluster{}).ValidateCreate(t.Context(), cluster)
	g.Expect(err).To(MatchError(ContainSubstring("spec.container.controlPlaneService.annotations")))
}

func TestFaultsOfResourcesComeInOneOrder(t *testing.T) {
	g, w := NewWithT(t), &TalosMachine{Manager: managerUser}
	none := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU, corev1.ResourceEphemeralStorage, "example.com/gpu"} {
		none[name] = resource.MustParse("-1")
	}
	machine := inPod(func(m *infrav1.TalosMachine) {
		m.Spec.ProviderID = ""
		m.Spec.Container.Resources = infrav1.ContainerResources{Limits: none, Requests: none}
	})
	_, first := w.ValidateCreate(t.Context(), machine)
	g.Expect(first).To(HaveOccurred())
	for range 20 {
		_, again := w.ValidateCreate(t.Context(), machine)
		g.Expect(again).To(MatchError(first.Error()))
	}
}
