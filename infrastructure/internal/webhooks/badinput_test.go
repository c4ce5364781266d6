package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// The tests of this file are named after the rows of the table of bad input in
// the documentation.

func TestBadInputMalformedAddressOfAHost(t *testing.T) {
	for _, address := range []string{
		"", " ", "192.0.2.300", "192.0.2", "192.0.2.1:50000", "192.0.2.1/24", "[2001:db8::1]", "fe80::1%eth0", "0.0.0.0", "::", "224.0.0.1", "ff02::1",
		"https://192.0.2.1", "node one", "node_1", "Node.example.com", "-a", "a..b",
	} {
		t.Run(address, func(t *testing.T) {
			g := NewWithT(t)
			h := host(func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"192.0.2.1", address} })
			_, created := (&TalosHost{Manager: managerUser}).ValidateCreate(t.Context(), h)
			_, updated := (&TalosHost{Manager: managerUser}).ValidateUpdate(as(t.Context(), "user", false), host(), h)
			for _, err := range []error{created, updated} {
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
				g.Expect(err).To(MatchError(And(ContainSubstring("spec.addresses[1]"), ContainSubstring("must be an IP address or a DNS name"))))
			}
		})
	}
	for _, address := range []string{"192.0.2.1", "127.0.0.9", "2001:db8::1", "node-1.example.com", "node1"} {
		t.Run(address+" is fine", func(t *testing.T) {
			_, err := (&TalosHost{Manager: managerUser}).ValidateCreate(t.Context(), host(func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{address} }))
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestBadInputIdentityThatIsNone(t *testing.T) {
	for name, tt := range map[string]struct {
		identity infrav1.HostIdentity
		field    string
	}{
		"all zero":                        {infrav1.HostIdentity{UUID: "00000000-0000-0000-0000-000000000000"}, "spec.identity.uuid"},
		"all F":                           {infrav1.HostIdentity{UUID: "ffffffff-ffff-ffff-ffff-ffffffffffff"}, "spec.identity.uuid"},
		"a vendor's placeholder":          {infrav1.HostIdentity{UUID: "03000200-0400-0500-0006-000700080009"}, "spec.identity.uuid"},
		"a hardware address of zeros":     {infrav1.HostIdentity{MACAddresses: []string{"00:00:00:00:00:00"}}, "spec.identity.macAddresses[0]"},
		"the broadcast address":           {infrav1.HostIdentity{MACAddresses: []string{"52:54:00:12:34:56", "FF:FF:FF:FF:FF:FF"}}, "spec.identity.macAddresses[1]"},
		"a placeholder beside an address": {infrav1.HostIdentity{UUID: "00000000-0000-0000-0000-000000000000", MACAddresses: []string{"52:54:00:12:34:56"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&TalosHost{Manager: managerUser}).ValidateCreate(t.Context(), host(func(h *infrav1.TalosHost) { h.Spec.Identity = tt.identity }))
			if tt.field == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				return
			}
			NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(tt.field), ContainSubstring("is a placeholder"))))
		})
	}
}

// TestBadInputSerialNumberAsTheOnlyIdentity: vendors give many machines the same one.
func TestBadInputSerialNumberAsTheOnlyIdentity(t *testing.T) {
	g := NewWithT(t)
	named := func(identity infrav1.HostIdentity) *infrav1.TalosHost {
		return host(func(h *infrav1.TalosHost) { h.Spec.Identity = identity })
	}
	w, user := &TalosHost{Manager: managerUser}, as(t.Context(), "user", false)
	alone := named(infrav1.HostIdentity{SerialNumber: "S1"})
	_, created := w.ValidateCreate(t.Context(), alone)
	_, updated := w.ValidateUpdate(user, host(), alone)
	for _, err := range []error{created, updated} {
		g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
		g.Expect(err).To(MatchError(And(ContainSubstring("spec.identity"), ContainSubstring("name uuid or macAddresses, too"))))
	}
	for _, identity := range []infrav1.HostIdentity{
		{SerialNumber: "S1", UUID: "4c4c4544-0042-3510-8053-b4c04f4d4e31"}, {SerialNumber: "S1", MACAddresses: []string{"52:54:00:12:34:56"}}, {},
	} {
		_, err := w.ValidateCreate(t.Context(), named(identity))
		g.Expect(err).NotTo(HaveOccurred())
	}
	changed := alone.DeepCopy()
	changed.Spec.Unschedulable = ptr.To(true)
	_, err := w.ValidateUpdate(user, alone, changed)
	g.Expect(err).NotTo(HaveOccurred(), "what is stored already stays")
}

// TestBadInputImageThatIsNone: an image is looked at by its name alone.
func TestBadInputImageThatIsNone(t *testing.T) {
	const (
		digest  = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		refusal = "must be an image without scheme and white space, for example factory.talos.dev/metal-installer/<schematic>:v1.13.9"
	)
	for image, refused := range map[string]bool{
		"factory.talos.dev/metal-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.13.9": false,
		"talos": false, "mine:1": false, "siderolabs/talos": false, "localhost/a": false, "my_org/talos__x/a--b.c": false,
		"localhost:5000/talos:v1.13.9": false, "Registry.example.com:5000/talos": false, "[2001:db8::1]:5000/talos:v1": false, "192.0.2.1:5000/talos": false,
		"ghcr.io/siderolabs/talos" + digest: false, "ghcr.io/siderolabs/talos:v1.13.9" + digest: false,
		"ghcr.io/siderolabs/talos:v1.14.0-alpha.1-43-gabcdef0-dirty_1": false,

		"https://factory.talos.dev/metal-installer/1:v1.13.9": true, "oci://ghcr.io/siderolabs/talos": true,
		" ghcr.io/siderolabs/talos:v1.13.9": true, "ghcr.io/siderolabs/talos:v1.13.9 ": true, "ghcr.io/siderolabs/talos:v1.13.9\n": true,
		"ghcr.io/siderolabs/talos:": true, "ghcr.io/siderolabs/talos:v1.13.9+x": true, "ghcr.io/siderolabs/Talos:v1.13.9": true,
		"ghcr.io/siderolabs/talos/": true, "ghcr.io//talos": true, "ghcr.io/siderolabs/talos@sha256:0123": true, "ghcr.io/a..b": true,
	} {
		t.Run(image, func(t *testing.T) {
			h := host(func(h *infrav1.TalosHost) { h.Spec.Install.Image = image })
			_, ofHost := (&TalosHost{Manager: managerUser}).ValidateCreate(t.Context(), h)
			talos := infrav1.TalosReleaseSpec{Version: "v1.13.9", Image: image}
			for name, err := range releases(t, talos, "image") {
				expectRefusal(t, name, err, refused, refusal)
			}
			expectRefusal(t, "spec.install.image", ofHost, refused, refusal)
		})
	}
}

// TestBadInputReleaseWithBuildMetadata: no image can be called so.
func TestBadInputReleaseWithBuildMetadata(t *testing.T) {
	for version, refused := range map[string]bool{
		"": false, "v1.13.9": false, "v1.14.0-alpha.1-43-gabcdef0": false,
		"v1.13.9+x": true, "v1.13.9- x": true, "1.13.9": true,
	} {
		t.Run(version, func(t *testing.T) {
			for name, err := range releases(t, infrav1.TalosReleaseSpec{Version: version}, "version") {
				expectRefusal(t, name, err, refused, "prefix v and without build metadata")
			}
		})
	}
}

// releases are the answers to machines and templates of a release, by the field that is
// to be named.
func releases(t *testing.T, talos infrav1.TalosReleaseSpec, field string) map[string]error {
	t.Helper()
	specs := map[string]infrav1.TalosMachineSpec{
		"metal":     {Metal: &infrav1.TalosMachineMetalSpec{Talos: talos}},
		"container": {Container: &infrav1.TalosMachineContainerSpec{Talos: talos}},
	}
	errs := map[string]error{}
	for kind, spec := range specs {
		_, errs["spec."+kind+".talos."+field] = (&TalosMachine{Manager: managerUser}).ValidateCreate(t.Context(), &infrav1.TalosMachine{Spec: spec})
		template := &infrav1.TalosMachineTemplate{}
		template.Spec.Template.Spec = spec
		_, errs["spec.template.spec."+kind+".talos."+field] = (&TalosMachineTemplate{}).ValidateCreate(t.Context(), template)
	}

	return errs
}

func expectRefusal(t *testing.T, field string, err error, refused bool, why string) {
	t.Helper()
	if !refused {
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), field)
		return
	}
	NewWithT(t).Expect(apierrors.IsInvalid(err)).To(BeTrue(), field)
	NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(field+":"), ContainSubstring(why))))
}

func TestBadInputDiskSelectorThatNoDiskIsLike(t *testing.T) {
	_, err := (&TalosHost{Manager: managerUser}).ValidateCreate(t.Context(), host(func(h *infrav1.TalosHost) {
		h.Spec.Install.DiskSelector = infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(100)), MaxSizeGiB: ptr.To(int32(50))}
	}))
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("spec.install.diskSelector.minSizeGiB")))
}

func TestBadInputFieldsOfTheManagerWrittenByAnybodyElse(t *testing.T) {
	wiped := func(h *infrav1.TalosHost) {
		h.Spec.Wiped = []infrav1.HostWipe{{ProviderID: "talos://0", ProvenAt: metav1.Unix(1<<30, 0)}}
	}
	quarantined := func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.Unix(1<<30, 0) }
	releasing := func(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem }
	tests := map[string]struct {
		before *infrav1.TalosHost
		change func(*infrav1.TalosHostSpec)
		wayOut []string
	}{
		"consumerRef is taken away": {host(claimed), func(s *infrav1.TalosHostSpec) { s.ConsumerRef = infrav1.ConsumerReference{} }, []string{"spec.consumerRef", "delete the Machine to free the host"}},
		"consumerRef is set":        {host(), func(s *infrav1.TalosHostSpec) { s.ConsumerRef.Name = "mine" }, []string{"spec.consumerRef", "delete the Machine to free the host"}},
		"handover is taken away":    {host(handedOver), func(s *infrav1.TalosHostSpec) { s.Handover = infrav1.HostHandover{} }, []string{"spec.handover", "delete the Machine, and the host is wiped"}},
		"handover is changed":       {host(handedOver), func(s *infrav1.TalosHostSpec) { s.Handover.Progress = infrav1.HandoverStarted }, []string{"spec.handover"}},
		"release is set":            {host(handedOver), func(s *infrav1.TalosHostSpec) { s.Release.Policy = infrav1.ReleaseWipeAll }, []string{"spec.release", infrav1.HostRetryAnnotation}},
		"release is taken away":     {host(handedOver, releasing), func(s *infrav1.TalosHostSpec) { s.Release = infrav1.HostRelease{} }, []string{"spec.release", infrav1.HostRetryAnnotation}},
		"a proof is taken away":     {host(wiped), func(s *infrav1.TalosHostSpec) { s.Wiped = nil }, []string{"spec.wiped", "proof"}},
		"quarantine is taken away":  {host(quarantined), func(s *infrav1.TalosHostSpec) { s.Quarantine = infrav1.HostQuarantine{} }, []string{"spec.quarantine", infrav1.HostRetryAnnotation}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			after := tt.before.DeepCopy()
			tt.change(&after.Spec)
			w := &TalosHost{Manager: managerUser}
			for _, user := range []string{"admin", "system:serviceaccount:capi-system:capi-manager"} {
				_, err := w.ValidateUpdate(as(t.Context(), user, false), tt.before, after)
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
				for _, words := range append(tt.wayOut, "belongs to the infrastructure provider") {
					g.Expect(err).To(MatchError(ContainSubstring(words)))
				}
			}
			_, err := w.ValidateUpdate(as(t.Context(), managerUser, false), tt.before, after)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestBadInputImmutableFieldsOfTalosMachines(t *testing.T) {
	machine := func(host string, policy infrav1.ReleasePolicy) *infrav1.TalosMachine {
		return &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{
			ProviderID: "talos://1", Metal: &infrav1.TalosMachineMetalSpec{ReleasePolicy: policy},
			HostRef: infrav1.TalosMachineHostReference{Name: host, Claim: infrav1.HostClaimBound},
		}}
	}
	ctx := as(t.Context(), "user", false)
	const wipe, retain = infrav1.ReleaseWipeSystem, infrav1.ReleaseRetain
	_, host := (&TalosMachine{}).ValidateUpdate(ctx, machine("h", wipe), machine("i", wipe))
	_, spec := (&TalosMachine{}).ValidateUpdate(ctx, machine("h", wipe), machine("h", retain))
	before, after := &infrav1.TalosMachineTemplate{}, &infrav1.TalosMachineTemplate{}
	after.Spec.Template.Spec.Metal = &infrav1.TalosMachineMetalSpec{ReleasePolicy: retain}
	_, template := (&TalosMachineTemplate{}).ValidateUpdate(ctx, before, after)
	for wayOut, err := range map[string]error{
		"the host is claimed; delete the Machine to free it":        host,
		"change the template or control plane that it is made from": spec,
		"create a new TalosMachineTemplate and refer to it instead": template,
	} {
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("is immutable"), ContainSubstring(wayOut))))
	}
}

// inPod is a TalosMachine that runs in a Pod.
func inPod(changes ...func(*infrav1.TalosMachine)) *infrav1.TalosMachine {
	machine := &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{
		ProviderID: "talos://1", Pod: infrav1.TalosMachinePod{Progress: infrav1.PodRan, UID: "1", EtcdAddress: "10.96.0.7"},
		Container: &infrav1.TalosMachineContainerSpec{
			Talos:     infrav1.TalosReleaseSpec{Version: "v1.13.9"},
			Resources: infrav1.ContainerResources{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}},
		},
	}}
	for _, change := range changes {
		change(machine)
	}

	return machine
}

func TestBadInputContainerChanged(t *testing.T) {
	const made, ours = "change the template or control plane that it is made from", "belongs to the infrastructure provider"
	for name, tt := range map[string]struct {
		before        *infrav1.TalosMachine
		change        func(*infrav1.TalosMachineSpec)
		field, wayOut string
		byManager     bool
	}{
		"the release":            {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.Talos.Version = "v1.13.8" }, "spec.container", made, false},
		"the image":              {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.Talos.Image = "example.com/talos" }, "spec.container", made, false},
		"the limits":             {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.Resources.Limits = nil }, "spec.container", made, false},
		"the storage":            {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.Storage.Type = infrav1.ContainerStorageEphemeral }, "spec.container", made, false},
		"where it may run":       {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.NodeSelector = map[string]string{"a": "b"} }, "spec.container", made, false},
		"the labels of its Pod":  {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container.PodMetadata.Labels = map[string]string{"a": "b"} }, "spec.container", made, false},
		"a container into metal": {inPod(), func(s *infrav1.TalosMachineSpec) { s.Container, s.Metal = nil, &infrav1.TalosMachineMetalSpec{} }, "spec.metal", made, false},
		"metal into a container": {
			&infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}}},
			func(s *infrav1.TalosMachineSpec) { s.Metal, s.Container = nil, &infrav1.TalosMachineContainerSpec{} }, "spec.metal", made, false,
		},
		"how far its Pod has come": {inPod(), func(s *infrav1.TalosMachineSpec) { s.Pod.Progress = infrav1.PodCreating }, "spec.pod", ours, true},
		"the record of its Pod":    {inPod(), func(s *infrav1.TalosMachineSpec) { s.Pod = infrav1.TalosMachinePod{} }, "spec.pod", ours, true},
		"its provider ID":          {inPod(), func(s *infrav1.TalosMachineSpec) { s.ProviderID = "talos://2" }, "spec.providerID", ours, true},
		"the record of a Pod that is being deleted": {
			inPod(func(m *infrav1.TalosMachine) { m.DeletionTimestamp = ptr.To(metav1.Unix(1<<30, 0)) }),
			func(s *infrav1.TalosMachineSpec) { s.Pod.UID = "2" }, "spec.pod", ours, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), &TalosMachine{Manager: managerUser}
			after := tt.before.DeepCopy()
			tt.change(&after.Spec)
			for _, user := range []string{"admin", "system:serviceaccount:capi-system:capi-manager"} {
				_, err := w.ValidateUpdate(as(t.Context(), user, false), tt.before, after)
				g.Expect(apierrors.IsInvalid(err)).To(BeTrue())
				g.Expect(err).To(MatchError(And(ContainSubstring(tt.field+":"), ContainSubstring(tt.wayOut))))
			}
			_, err := w.ValidateUpdate(as(t.Context(), managerUser, false), tt.before, after)
			g.Expect(err == nil).To(Equal(tt.byManager), "%v", err)
		})
	}
}

// TestBadInputContainerChangedInATemplate: a template is immutable, but for what the
// topology controller asks in a dry run.
func TestBadInputContainerChangedInATemplate(t *testing.T) {
	g, w := NewWithT(t), &TalosMachineTemplate{}
	before := &infrav1.TalosMachineTemplate{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{clusterv1.TopologyDryRunAnnotation: ""}}}
	before.Spec.Template.Spec.Container = inPod().Spec.Container
	after := before.DeepCopy()
	after.Spec.Template.Spec.Container.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("3Gi")
	_, err := w.ValidateUpdate(as(t.Context(), "user", false), before, after)
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.template.spec"), ContainSubstring("create a new TalosMachineTemplate"))))
	_, err = w.ValidateUpdate(as(t.Context(), "user", true), before, after)
	g.Expect(err).NotTo(HaveOccurred())
	after.Spec.Template.Spec.Container.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("2048Mi")
	_, err = w.ValidateUpdate(as(t.Context(), "user", false), before, after)
	g.Expect(err).NotTo(HaveOccurred(), "it says the same in other words")
}

func TestBadInputClaimedTalosHostIsDeleted(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m"}, Spec: infrav1.TalosMachineSpec{ProviderID: "talos://1"}},
	).Build()
	_, err := (&TalosHost{Manager: managerUser, Reader: reader}).ValidateDelete(t.Context(), host(claimed))
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
	g.Expect(err).To(MatchError(ContainSubstring("TalosMachine m has claimed it; delete its Machine first, which wipes the machine")))
}

func TestBadInputAddressEditedWhileHandedOver(t *testing.T) {
	for field, change := range map[string]func(*infrav1.TalosHostSpec){
		"spec.addresses":         func(s *infrav1.TalosHostSpec) { s.Addresses = append(s.Addresses, "192.0.2.9") },
		"spec.network.addresses": func(s *infrav1.TalosHostSpec) { s.Network.Addresses = []string{"192.0.2.9/24"} },
		"spec.identity":          func(s *infrav1.TalosHostSpec) { s.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" },
	} {
		t.Run(field, func(t *testing.T) {
			g := NewWithT(t)
			after := host(handedOver)
			change(&after.Spec)
			_, err := (&TalosHost{Manager: managerUser}).ValidateUpdate(as(t.Context(), "user", false), host(handedOver), after)
			g.Expect(err).To(MatchError(And(ContainSubstring(field), ContainSubstring("Delete the Machine first"))))
		})
	}
}
