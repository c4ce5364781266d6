package objects

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var (
	owner    = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "mine", UID: "mine"}}
	stranger = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "theirs", UID: "theirs"}}
)

func serviceOf(cluster *clusterv1.Cluster, finalizers ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: "s", UID: "first", Finalizers: finalizers,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))},
	}}
}

func TestDeleteOwned(t *testing.T) {
	for name, tc := range map[string]struct {
		there       []client.Object
		left, stays bool
	}{
		"what is not there is gone":                         {},
		"what has no finalizer is gone at once":             {there: []client.Object{serviceOf(owner)}},
		"what has a finalizer is waited for":                {there: []client.Object{serviceOf(owner, "example.com/wait")}, left: true, stays: true},
		"what is somebody else's stays, and counts as gone": {there: []client.Object{serviceOf(stranger)}, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := fake.NewClientBuilder().WithObjects(tc.there...).Build()
			for range 2 {
				found := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}
				left, err := DeleteOwned(t.Context(), c, c, owner, found)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(left).To(Equal(tc.left))
			}
			services := &corev1.ServiceList{}
			g.Expect(c.List(t.Context(), services)).To(Succeed())
			g.Expect(services.Items).To(HaveLen(map[bool]int{true: 1}[tc.stays]))
		})
	}
}

func TestWhatCannotBeReadIsNotTakenForGone(t *testing.T) {
	broken := errors.New("the API server is away")
	for name, reads := range map[string]int{"before its deletion": 0, "after its deletion": 1} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c := fake.NewClientBuilder().WithObjects(serviceOf(owner, "example.com/wait")).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
					if reads--; reads < 0 {
						return broken
					}
					return c.Get(ctx, key, into, options...)
				},
			}).Build()
			_, err := DeleteOwned(t.Context(), c, c, owner, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}})
			g.Expect(err).To(MatchError(broken))
		})
	}
}

func TestAStatusIsWrittenWithOneCallOrNone(t *testing.T) {
	g, calls := NewWithT(t), 0
	c := fake.NewClientBuilder().WithObjects(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "c"}}).WithStatusSubresource(&corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(ctx context.Context, inner client.Client, subresource string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			calls++
			return inner.SubResource(subresource).Patch(ctx, object, patch, opts...)
		}}).Build()
	before := &corev1.Pod{}
	g.Expect(c.Get(t.Context(), client.ObjectKey{Namespace: "n", Name: "c"}, before)).To(Succeed())
	g.Expect(PatchStatus(t.Context(), c, before, before.DeepCopy())).To(Succeed())
	g.Expect(calls).To(BeZero())

	after := before.DeepCopy()
	after.Status.Phase, after.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	g.Expect(PatchStatus(t.Context(), c, before, after.DeepCopy())).To(Succeed())
	g.Expect(calls).To(Equal(1))
	found := &corev1.Pod{}
	g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(before), found)).To(Succeed())
	g.Expect(found.Status.Phase).To(Equal(corev1.PodRunning))
	g.Expect(found.Status.Conditions).To(HaveLen(1))
	g.Expect(apierrors.IsConflict(PatchStatus(t.Context(), c, before, after))).To(BeTrue(), "somebody has written it meanwhile")
}

// TestConditionsAreWrittenBesideThoseOfOthers: the cache has not seen what others, or this
// controller just before, have written.
func TestConditionsAreWrittenBesideThoseOfOthers(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	scheme := runtime.NewScheme()
	g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
	made := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "m"}}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(made).WithStatusSubresource(made).Build()
	old := &clusterv1.Machine{}
	g.Expect(live.Get(ctx, client.ObjectKeyFromObject(made), old)).To(Succeed())
	behind := interceptor.NewClient(live, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
			old.DeepCopyInto(into.(*clusterv1.Machine))
			return nil
		},
	})
	newer := old.DeepCopy()
	conditions.Set(newer, metav1.Condition{Type: "Theirs", Status: metav1.ConditionTrue, Reason: "Test"})
	g.Expect(live.Status().Update(ctx, newer)).To(Succeed())

	machine := old.DeepCopy()
	helper, err := patch.NewHelper(machine, ReadLive(behind, live))
	g.Expect(err).NotTo(HaveOccurred())
	conditions.Set(machine, metav1.Condition{Type: "Ours", Status: metav1.ConditionTrue, Reason: "Test"})
	g.Expect(helper.Patch(ctx, machine)).To(Succeed())
	g.Expect(live.Get(ctx, client.ObjectKeyFromObject(made), machine)).To(Succeed())
	g.Expect(conditions.IsTrue(machine, "Ours")).To(BeTrue())
	g.Expect(conditions.IsTrue(machine, "Theirs")).To(BeTrue())
}

// TestWhatIsReadLiveIsWhatIsThere: an API server leaves out what is empty, and its answer is
// decoded on top of what the object held.
func TestWhatIsReadLiveIsWhatIsThere(t *testing.T) {
	g := NewWithT(t)
	live := interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
			return json.Unmarshal([]byte(`{"metadata":{"name":"p"},"spec":{"nodeName":"n"}}`), into)
		},
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"gone": "by now"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	g.Expect(ReadLive(live, live).Get(t.Context(), client.ObjectKeyFromObject(pod), pod)).To(Succeed())
	g.Expect(pod).To(Equal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}))
}

func TestSelects(t *testing.T) {
	object := &metav1.ObjectMeta{Labels: map[string]string{"tier": "gold"}}
	for name, tt := range map[string]struct {
		selector metav1.LabelSelector
		all      *bool
		want     bool
	}{
		"its labels":                        {selector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, want: true},
		"other labels":                      {selector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "silver"}}},
		"an empty selector selects nothing": {},
		"all":                               {all: ptr.To(true), want: true},
		"not all":                           {all: ptr.To(false)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(Selects(tt.selector, tt.all, object)).To(Equal(tt.want))
		})
	}
	_, err := Selects(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "Like"}}}, nil, object)
	NewWithT(t).Expect(err).To(HaveOccurred())
}

// TestRecord: what cannot be read is none.
func TestRecord(t *testing.T) {
	type record struct{ Name string }
	for name, tc := range map[string]struct {
		annotations map[string]string
		want        *record
	}{
		"there":             {map[string]string{"record": `{"name":"one"}`}, &record{Name: "one"}},
		"no annotation":     {nil, nil},
		"another one":       {map[string]string{"other": `{"name":"one"}`}, nil},
		"empty":             {map[string]string{"record": ""}, nil},
		"no JSON":           {map[string]string{"record": "one"}, nil},
		"JSON of something": {map[string]string{"record": `["one"]`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Record[record](&metav1.ObjectMeta{Annotations: tc.annotations}, "record")).To(Equal(tc.want))
		})
	}
}

func TestWatchAs(t *testing.T) {
	g := NewWithT(t)
	of, made := owner.DeepCopy(), &corev1.Service{}
	WatchAs(of, made)
	g.Expect(made.Labels).To(BeEmpty())

	of.Labels = map[string]string{clusterv1.WatchLabel: "ours", "of": "theirs"}
	WatchAs(of, made)
	g.Expect(made.Labels).To(Equal(map[string]string{clusterv1.WatchLabel: "ours"}))

	made.Labels = map[string]string{"kept": ""}
	WatchAs(of, made)
	g.Expect(made.Labels).To(Equal(map[string]string{clusterv1.WatchLabel: "ours", "kept": ""}))
}
