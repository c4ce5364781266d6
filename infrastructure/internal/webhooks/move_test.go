package webhooks

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// withRights is the webhook in a management cluster in which the group "movers" may move
// hosts of namespace "ns".
func withRights(t *testing.T, asked *[]authorizationv1.SubjectAccessReviewSpec, failure error, objects ...client.Object) *TalosHost {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, infrav1.AddToScheme, clusterv1.AddToScheme, authorizationv1.AddToScheme} {
		NewWithT(t).Expect(add(scheme)).To(Succeed())
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			review, ok := object.(*authorizationv1.SubjectAccessReview)
			NewWithT(t).Expect(ok).To(BeTrue(), "nothing else is created at admission")
			if asked != nil {
				*asked = append(*asked, review.Spec)
			}
			review.Status.Allowed = len(review.Spec.Groups) > 0 && review.Spec.Groups[0] == "movers"
			return failure
		},
	}).Build()

	return &TalosHost{Reader: c, Reviews: c, Manager: managerUser}
}

func by(ctx context.Context, groups ...string) context.Context {
	return admission.NewContextWithRequest(ctx, admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UserInfo: authenticationv1.UserInfo{Username: "user", UID: "1", Groups: groups, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a"}}}, DryRun: ptr.To(false),
	}})
}

func TestBadInputFieldsOfTheManagerInANewTalosHost(t *testing.T) {
	for field, record := range map[string]func(*infrav1.TalosHostSpec){
		"consumerRef": func(s *infrav1.TalosHostSpec) { s.ConsumerRef.Name = "m" },
		"handover":    func(s *infrav1.TalosHostSpec) { s.Handover.ProviderID = "talos://1" },
		"release":     func(s *infrav1.TalosHostSpec) { s.Release.Policy = infrav1.ReleaseWipeAll },
		"quarantine":  func(s *infrav1.TalosHostSpec) { s.Quarantine.Since = metav1.Unix(1<<30, 0) },
		"reprovision": func(s *infrav1.TalosHostSpec) { s.Reprovision.ClusterName = "one" },
		"wiped":       func(s *infrav1.TalosHostSpec) { s.Wiped = []infrav1.HostWipe{{ProviderID: "talos://1"}} },
	} {
		t.Run(field, func(t *testing.T) {
			g := NewWithT(t)
			var asked []authorizationv1.SubjectAccessReviewSpec
			h := host(func(h *infrav1.TalosHost) { record(&h.Spec) })
			_, err := withRights(t, &asked, nil).ValidateCreate(by(t.Context(), "tenants"), h)
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
			g.Expect(err).To(MatchError(And(ContainSubstring("spec."+field), ContainSubstring(`the verb "move" on taloshosts`))))
			g.Expect(asked).To(Equal([]authorizationv1.SubjectAccessReviewSpec{{
				User: "user", UID: "1", Groups: []string{"tenants"}, Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a"}},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: "ns", Verb: "move", Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Resource: "taloshosts", Name: "h",
				},
			}}))
			_, err = withRights(t, nil, nil).ValidateCreate(by(t.Context(), "movers"), h)
			g.Expect(err).NotTo(HaveOccurred(), "clusterctl, and a restore")
			_, err = withRights(t, nil, errors.New("time-out")).ValidateCreate(by(t.Context(), "movers"), h)
			g.Expect(err).To(HaveOccurred(), "nobody can tell")
		})
	}
	_, err := withRights(t, nil, errors.New("time-out")).ValidateCreate(by(t.Context(), "tenants"), host())
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "it has no records, and nobody is asked")
}

// TestWhatIsInUseIsMovedAsItWasStored: rules that came later do not hold a move up, since
// nobody can mend what is immutable.
func TestWhatIsInUseIsMovedAsItWasStored(t *testing.T) {
	g := NewWithT(t)
	w, mover := withRights(t, nil, nil), by(t.Context(), "movers")
	free := host(func(h *infrav1.TalosHost) {
		h.Spec.Identity, h.Spec.Network = infrav1.HostIdentity{SerialNumber: "S1"}, infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"192.0.2.0/24"}}
		h.Spec.Install.Image = "https://ghcr.io/siderolabs/installer:v1.13.9"
	})
	_, err := w.ValidateCreate(mover, free)
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.identity"), ContainSubstring("spec.network.addresses[0]"), ContainSubstring("spec.install.image"))), "it can be mended before")
	inUse := free.DeepCopy()
	handedOver(inUse)
	_, err = w.ValidateCreate(mover, inUse)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = w.ValidateCreate(by(t.Context(), "tenants"), inUse)
	g.Expect(apierrors.IsForbidden(err)).To(BeTrue())
	wiped := free.DeepCopy()
	wiped.Spec.Reprovision.Previous.ProviderID = "talos://1"
	_, err = w.ValidateCreate(mover, wiped)
	g.Expect(err).NotTo(HaveOccurred(), "its machine is to be configured again")

	machine := &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9+x", Image: "oci://a"}}}}
	_, err = (&TalosMachine{Manager: managerUser}).ValidateCreate(mover, machine)
	g.Expect(err).To(MatchError(And(ContainSubstring("spec.metal.talos.version"), ContainSubstring("spec.metal.talos.image"))))
	machine.Spec.ProviderID = "talos://1"
	_, err = (&TalosMachine{Manager: managerUser}).ValidateCreate(mover, machine)
	g.Expect(err).NotTo(HaveOccurred())
}

func TestBadInputFinalizerOfATalosHostInUseTakenAway(t *testing.T) {
	finalized := func(h *infrav1.TalosHost) { h.Finalizers = []string{"x", infrav1.TalosHostFinalizer} }
	released := func(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem }
	for name, tt := range map[string]struct {
		before  *infrav1.TalosHost
		left    []string
		refused bool
	}{
		"of a host in use":           {before: host(handedOver, finalized), left: []string{"x"}, refused: true},
		"of a claimed host":          {before: host(claimed, finalized), refused: true},
		"of a host that is released": {before: host(released, finalized), refused: true},
		"of a free host":             {before: host(finalized)},
		"another one":                {before: host(handedOver, finalized), left: []string{infrav1.TalosHostFinalizer}},
		"none is there":              {before: host(handedOver)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			after := tt.before.DeepCopy()
			after.Finalizers = tt.left
			_, err := withRights(t, nil, nil).ValidateUpdate(by(t.Context(), "tenants"), tt.before, after)
			g.Expect(apierrors.IsForbidden(err)).To(Equal(tt.refused), "%v", err)
			_, err = withRights(t, nil, nil).ValidateUpdate(by(t.Context(), "movers"), tt.before, after)
			g.Expect(err).NotTo(HaveOccurred(), "clusterctl")
			_, err = withRights(t, nil, errors.New("time-out")).ValidateUpdate(as(t.Context(), managerUser, false), tt.before, after)
			g.Expect(err).NotTo(HaveOccurred(), "the manager")
		})
	}
}

func TestBadInputAnnotationOfAMoveOutsideOfOne(t *testing.T) {
	moved := host(handedOver, func(h *infrav1.TalosHost) { h.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""} })
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	consumer := &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", Labels: map[string]string{clusterv1.ClusterNameLabel: "one"}},
		Spec:       infrav1.TalosMachineSpec{ProviderID: "talos://1"},
	}
	cluster := func(paused *bool) *clusterv1.Cluster {
		return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one"}, Spec: clusterv1.ClusterSpec{Paused: paused}}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		refused bool
	}{
		"its Cluster runs":         {objects: []client.Object{namespace, consumer, cluster(nil)}, refused: true},
		"its Cluster is paused":    {objects: []client.Object{namespace, consumer, cluster(ptr.To(true))}},
		"its Cluster is gone":      {objects: []client.Object{namespace, consumer}},
		"its TalosMachine is gone": {objects: []client.Object{namespace, cluster(nil)}},
		"only another Cluster is paused": {objects: []client.Object{namespace, consumer, cluster(nil), &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two"}, Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)},
		}}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := withRights(t, nil, nil, tt.objects...).ValidateDelete(by(t.Context(), "tenants"), moved)
			NewWithT(t).Expect(apierrors.IsForbidden(err)).To(Equal(tt.refused), "%v", err)
		})
	}
}

// TestAddressesAreAddedToAHostInUse: a machine that was renumbered must be found again.
// Whoever answers must have its identity, so an address more does no harm.
func TestAddressesAreAddedToAHostInUse(t *testing.T) {
	const uuid = "4c4c4544-0042-3510-8053-b4c04f4d4e99"
	known := func(identity infrav1.HostIdentity) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.Handover.Identity = identity }
	}
	for name, tt := range map[string]struct {
		identity  infrav1.HostIdentity
		addresses []string
		refused   bool
	}{
		"one more":                        {identity: infrav1.HostIdentity{UUID: uuid}, addresses: []string{"192.0.2.1", "192.0.2.9"}},
		"one more, before the others":     {identity: infrav1.HostIdentity{UUID: uuid}, addresses: []string{"192.0.2.9", "192.0.2.1"}},
		"one more, by hardware addresses": {identity: infrav1.HostIdentity{MACAddresses: []string{"52:54:00:12:34:56"}}, addresses: []string{"192.0.2.1", "192.0.2.9"}},
		"another one instead":             {identity: infrav1.HostIdentity{UUID: uuid}, addresses: []string{"192.0.2.9"}, refused: true},
		"one more, by a placeholder":      {identity: infrav1.HostIdentity{UUID: "03000200-0400-0500-0006-000700080009"}, addresses: []string{"192.0.2.1", "192.0.2.9"}, refused: true},
		"one more, and nothing is known":  {addresses: []string{"192.0.2.1", "192.0.2.9"}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := host(handedOver, known(tt.identity))
			after := before.DeepCopy()
			after.Spec.Addresses = tt.addresses
			_, err := withRights(t, nil, nil).ValidateUpdate(by(t.Context(), "tenants"), before, after)
			NewWithT(t).Expect(err != nil).To(Equal(tt.refused), "%v", err)
		})
	}
}

func TestWhetherAMachineHasRunIsTheManagersToSay(t *testing.T) {
	g, w := NewWithT(t), &TalosMachine{Manager: managerUser}
	machine := func(progress infrav1.HostProgress) *infrav1.TalosMachine {
		return &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{
			ProviderID: "talos://1", Metal: &infrav1.TalosMachineMetalSpec{},
			HostRef: infrav1.TalosMachineHostReference{Name: "h", Claim: infrav1.HostClaimBound, Progress: progress},
		}}
	}
	for _, change := range [][2]infrav1.HostProgress{{"", infrav1.HostRan}, {infrav1.HostRan, ""}} {
		_, err := w.ValidateUpdate(as(t.Context(), "user", false), machine(change[0]), machine(change[1]))
		g.Expect(err).To(MatchError(And(ContainSubstring("spec.hostRef.progress"), ContainSubstring("belongs to the infrastructure provider"))))
		_, err = w.ValidateUpdate(as(t.Context(), managerUser, false), machine(change[0]), machine(change[1]))
		g.Expect(err).NotTo(HaveOccurred())
	}
}
