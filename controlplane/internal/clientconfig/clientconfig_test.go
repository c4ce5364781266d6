package clientconfig

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

const namespace = "fleet"

var start = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)

// testBundle is made once, because that takes its time.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) { return secrets.NewBundle(start, "v1.13", nil) })

// keeping is a Keeper with its management cluster.
type keeping struct {
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder
	keeper Keeper
	input  Input
}

func newKeeping(t *testing.T) *keeping {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, controlplanev1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	controlPlane := &controlplanev1.TalosControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one-cp", UID: "uid"}}
	k := &keeping{
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(controlPlane).Build(),
		clock:  clocktesting.NewFakePassiveClock(start),
		events: events.NewFakeRecorder(100),
	}
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	k.keeper = Keeper{Client: k.client, Secrets: k.client, Live: k.client, Clock: k.clock, Recorder: k.events, Metrics: metrics.New()}
	k.input = Input{
		Cluster: &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one", UID: "cluster"},
			Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "10.0.0.100", Port: 6443}},
		},
		ControlPlane: controlPlane, Bundle: bundle,
	}

	return k
}

// stored are the resource versions of the Secrets that are there, by name.
func (k *keeping) stored(t *testing.T) map[string]string {
	t.Helper()
	list := &corev1.SecretList{}
	NewWithT(t).Expect(k.client.List(t.Context(), list)).To(Succeed())
	found := map[string]string{}
	for _, secret := range list.Items {
		found[secret.Name] = secret.ResourceVersion
	}

	return found
}

func (k *keeping) sync(t *testing.T) Kept {
	t.Helper()
	kept, err := k.keeper.Sync(t.Context(), k.input)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return kept
}

func TestBothAreWrittenOnce(t *testing.T) {
	g := NewWithT(t)
	k := newKeeping(t)
	kept := k.sync(t)
	g.Expect(kept.Kubeconfig).To(ContainSubstring("https://10.0.0.100:6443"))
	g.Expect(kept.Expiries).To(HaveLen(6), "four CAs and two client certificates")
	before := k.stored(t)
	g.Expect(before).To(And(HaveLen(2), HaveKey(KubeconfigName("one")), HaveKey(secrets.TalosconfigName("one"))))
	g.Expect(k.sync(t).Kubeconfig).To(Equal(kept.Kubeconfig))
	g.Expect(k.stored(t)).To(Equal(before))
}

func TestWhatIsNotMade(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Input)
		want   []string
	}{
		"no kubeconfig without an endpoint": {func(in *Input) { in.Cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} }, []string{"one-talosconfig"}},
		"nothing without the bundle":        {func(in *Input) { in.Bundle = nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			k := newKeeping(t)
			tc.change(&k.input)
			kept := k.sync(t)
			g.Expect(kept.Kubeconfig).To(BeEmpty())
			g.Expect(kept.Expiries == nil).To(Equal(k.input.Bundle == nil))
			found := k.stored(t)
			g.Expect(found).To(HaveLen(len(tc.want)))
			for _, name := range tc.want {
				g.Expect(found).To(HaveKey(name))
			}
		})
	}
}

// TestAWishIsConfirmedLive: a cache that lags behind must not have certificates made twice.
func TestAWishIsConfirmedLive(t *testing.T) {
	g := NewWithT(t)
	k := newKeeping(t)
	k.sync(t)
	before := k.stored(t)
	metav1.SetMetaDataAnnotation(&k.input.ControlPlane.ObjectMeta, controlplanev1.RenewCredentialsAnnotation, "")
	g.Expect(k.sync(t).Renewed).To(BeFalse())
	g.Expect(k.stored(t)).To(Equal(before))

	g.Expect(k.client.Update(t.Context(), k.input.ControlPlane)).To(Succeed())
	g.Expect(k.sync(t).Renewed).To(BeTrue())
	for name, version := range k.stored(t) {
		g.Expect(version).NotTo(Equal(before[name]), name)
	}
	g.Expect(k.events.Events).To(Receive(HavePrefix("Normal CredentialsRenewed ")))
}

// ask has a person want new certificates.
func (k *keeping) ask(t *testing.T, value string) {
	t.Helper()
	metav1.SetMetaDataAnnotation(&k.input.ControlPlane.ObjectMeta, controlplanev1.RenewCredentialsAnnotation, value)
	NewWithT(t).Expect(k.client.Update(t.Context(), k.input.ControlPlane)).To(Succeed())
}

// refuse has the API server not take changes of Secrets of these names.
func (k *keeping) refuse(answer error, names ...string) {
	k.keeper.Client = interceptor.NewClient(k.client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if slices.Contains(names, object.GetName()) {
				return answer
			}
			return c.Patch(ctx, object, patch, opts...)
		},
	})
}

// TestWhatIsLeftOfAWish: it is answered when certificates were made anew, and not when the
// API server has not taken them, or nobody knows.
func TestWhatIsLeftOfAWish(t *testing.T) {
	const kubeconfig, talosconfig = "one-kubeconfig", "one-talosconfig"
	notTaken, timeout := apierrors.NewInternalError(errors.New("no webhook")), apierrors.NewTimeoutError("too slow", 1)
	for name, tc := range map[string]struct {
		wish    string
		answer  error
		refused []string
		// renewed are the Secrets that have a new certificate then.
		renewed []string
		// answered and left are the outcome.
		answered bool
		left     string
		failures int
	}{
		"nothing":                               {"leaked", nil, nil, []string{kubeconfig, talosconfig}, true, "", 0},
		"all, when none is taken":               {"leaked", notTaken, []string{kubeconfig, talosconfig}, nil, false, "", 2},
		"the kubeconfig, when it is not taken":  {"leaked", notTaken, []string{kubeconfig}, []string{talosconfig}, true, kubeconfig, 1},
		"the talosconfig, when it is not taken": {"", notTaken, []string{talosconfig}, []string{kubeconfig}, true, talosconfig, 1},
		"the talosconfig, when nobody knows":    {"", timeout, []string{talosconfig}, []string{kubeconfig}, true, talosconfig, 0},
		"all, when nobody knows of the first":   {"", timeout, []string{kubeconfig}, nil, false, "", 0},
		"nothing of a wish for one":             {kubeconfig, notTaken, []string{talosconfig}, []string{kubeconfig}, true, "", 0},
		"a wish for one that is not taken":      {talosconfig, notTaken, []string{talosconfig}, nil, false, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			k := newKeeping(t)
			k.sync(t)
			before := k.stored(t)
			k.ask(t, tc.wish)
			k.refuse(tc.answer, tc.refused...)

			kept, err := k.keeper.Sync(t.Context(), k.input)
			g.Expect(apierrors.IsTimeout(err)).To(Equal(errors.Is(tc.answer, timeout)), "%v", err)
			g.Expect(kept.Renewed).To(Equal(tc.answered))
			g.Expect(kept.Left).To(Equal(tc.left))
			g.Expect(kept.Failures).To(HaveLen(tc.failures))
			for name, version := range k.stored(t) {
				g.Expect(version != before[name]).To(Equal(slices.Contains(tc.renewed, name)), name)
			}
		})
	}
}
