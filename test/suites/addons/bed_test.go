package addons

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// patience is how long something may take that goes well: the machine may be busy.
const patience = 5 * time.Minute

// withPatience is gomega with time enough.
func withPatience(t *testing.T) *WithT {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(time.Second / 4)

	return g
}

// addonOf is an add-on for all Clusters of a namespace, whose release is in the namespace
// of that name in the workload cluster.
func addonOf(namespace, name string, source addonv1.AddonSource) *addonv1.TalosClusterAddon {
	return &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: addonv1.TalosClusterAddonSpec{
		MatchAll: ptr.To(true), Source: source, Release: addonv1.ReleaseSpec{Namespace: namespace, Wait: addonv1.WaitNone},
	}}
}

// create creates objects in the management cluster, once its webhooks answer.
func create[T client.Object](t *testing.T, objects ...T) {
	t.Helper()
	g := withPatience(t)
	for _, object := range objects {
		g.Eventually(func() error { return management.Create(t.Context(), object) }).Should(Succeed())
	}
}

// edit changes an object of the management cluster.
func edit[T client.Object](t *testing.T, object T, change func(T)) {
	t.Helper()
	g := withPatience(t)
	g.Expect(management.Get(t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	before, _ := object.DeepCopyObject().(T)
	change(object)
	g.Expect(management.Patch(t.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// chartOf reads condition ChartAvailable of an add-on: "False SourceNotFound: message".
func chartOf(ctx context.Context, addon *addonv1.TalosClusterAddon) func() (string, error) {
	return func() (string, error) {
		found := &addonv1.TalosClusterAddon{}
		if err := management.Get(ctx, client.ObjectKeyFromObject(addon), found); err != nil {
			return "", err
		}

		return textOf(found, addonv1.ChartAvailableCondition), nil
	}
}

func textOf(object conditions.Getter, condition string) string {
	found := conditions.Get(object, condition)
	if found == nil {
		return ""
	}

	return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
}

// releaseOf reads the release of an add-on in its one Cluster.
func releaseOf(ctx context.Context, addon *addonv1.TalosClusterAddon) (*addonv1.TalosClusterAddonRelease, error) {
	found := &addonv1.TalosClusterAddonReleaseList{}
	if err := management.List(ctx, found, client.InNamespace(addon.Namespace)); err != nil {
		return nil, err
	}
	for i := range found.Items {
		if found.Items[i].Spec.AddonName == addon.Name {
			return &found.Items[i], nil
		}
	}

	return nil, fmt.Errorf("there is no release of %s", addon.Name)
}

// deployed reads what is deployed, and whether it is all that is asked for: "1.0.0 True
// Ready: ".
func deployed(ctx context.Context, addon *addonv1.TalosClusterAddon) func() (string, error) {
	return func() (string, error) {
		found, err := releaseOf(ctx, addon)
		if err != nil {
			return "", err
		}

		return found.Status.Deployed.Version + " " + textOf(found, addonv1.ReleaseReadyCondition), nil
	}
}

// isReady is how deployed tells that a version is.
func isReady(version string) string { return version + " True Ready: " }

// waitUntilGone waits until an object of the management cluster is gone.
func waitUntilGone(t *testing.T, object client.Object) {
	t.Helper()
	g := withPatience(t)
	g.Eventually(func() error { return management.Get(t.Context(), client.ObjectKeyFromObject(object), object) }).Should(Satisfy(apierrors.IsNotFound))
}
