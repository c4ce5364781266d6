package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

const (
	// maxNamed is how many objects a message names.
	maxNamed = 3
	// releaseRetryInterval is how soon is tried again what the API server refuses, and looked
	// again at a release of somebody else.
	releaseRetryInterval = time.Minute
)

// reconcileReleases makes a release for each Cluster that is selected, deletes those of
// others, and lets changes go to so many clusters at a time.
func (r *AddonReconciler) reconcileReleases(ctx context.Context, s *addonScope) error {
	if err := r.gatherClusters(ctx, s); err != nil {
		return err
	}
	if err := r.gatherReleases(ctx, s); err != nil {
		return err
	}
	s.isGathered = true
	var errs []error
	byCluster := map[string]*addonv1.TalosClusterAddonRelease{}
	for i := range s.releases {
		byCluster[s.releases[i].Spec.ClusterName] = &s.releases[i]
	}
	for i := range s.clusters {
		name := s.clusters[i].Name
		if found := byCluster[name]; found != nil {
			errs = append(errs, s.heed(name, r.syncRelease(ctx, s, found)))
			delete(byCluster, name)
			continue
		}
		errs = append(errs, s.heed(name, r.createRelease(ctx, s, &s.clusters[i])))
	}
	for name, release := range byCluster {
		if !isPlanned(s.addon) {
			errs = append(errs, s.heed(name, r.deleteDeselected(ctx, s, release)))
		}
	}
	errs = append(errs, r.admit(ctx, s))

	return kerrors.NewAggregate(errs)
}

// heed notes what the API server does not take for a Cluster. That is no error of the reconcile:
// it is tried again after a while.
func (s *addonScope) heed(cluster string, err error) error {
	if !objects.IsNotTaken(err) {
		return err
	}
	s.refused[cluster] = objects.Words(err)
	s.again(releaseRetryInterval)

	return nil
}

func (r *AddonReconciler) gatherClusters(ctx context.Context, s *addonScope) error {
	found := &clusterv1.ClusterList{}
	if err := r.Client.List(ctx, found, client.InNamespace(s.addon.Namespace)); err != nil {
		return fmt.Errorf("listing the Clusters: %w", err)
	}
	for i := range found.Items {
		cluster := &found.Items[i]
		selected, err := order.Selects(s.addon, cluster)
		if err != nil {
			return err
		}
		if selected && cluster.DeletionTimestamp.IsZero() {
			s.clusters = append(s.clusters, *cluster)
		}
	}
	slices.SortFunc(s.clusters, func(a, b clusterv1.Cluster) int { return cmp.Compare(a.Name, b.Name) })

	return nil
}

// gatherReleases gathers the releases that the add-on controls, whatever their labels: somebody
// may have taken these away.
func (r *AddonReconciler) gatherReleases(ctx context.Context, s *addonScope) error {
	found := &addonv1.TalosClusterAddonReleaseList{}
	// Those of all add-ons are looked at, and those of this one alone are copied.
	if err := r.Client.List(ctx, found, client.InNamespace(s.addon.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing the releases: %w", err)
	}
	for i := range found.Items {
		if metav1.IsControlledBy(&found.Items[i], s.addon) {
			s.releases = append(s.releases, *found.Items[i].DeepCopy())
		}
	}
	slices.SortFunc(s.releases, func(a, b addonv1.TalosClusterAddonRelease) int { return cmp.Compare(a.Name, b.Name) })

	return nil
}

// createRelease makes the release of a Cluster, or takes the one that is there.
func (r *AddonReconciler) createRelease(ctx context.Context, s *addonScope, cluster *clusterv1.Cluster) error {
	made := &addonv1.TalosClusterAddonRelease{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.addon.Namespace, Name: naming.Release(s.addon.Name, cluster.Name),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.addon, addonv1.GroupVersion.WithKind(addonv1.TalosClusterAddonKind))},
	}}
	target := naming.Target(s.addon)
	made.Spec = addonv1.TalosClusterAddonReleaseSpec{
		ClusterName: cluster.Name, AddonName: s.addon.Name, ReleaseName: target.Name, ReleaseNamespace: target.Namespace,
	}
	desire(made, s.addon)
	err := r.Client.Create(ctx, made)
	if apierrors.IsAlreadyExists(err) {
		return r.takeRelease(ctx, s, client.ObjectKeyFromObject(made))
	}
	if err != nil {
		return fmt.Errorf("creating TalosClusterAddonRelease %s: %w", made.Name, err)
	}
	s.releases = append(s.releases, *made)
	r.Recorder.Eventf(s.addon, made, corev1.EventTypeNormal, "ClusterSelected", "Create", "Cluster %s is selected", cluster.Name)

	return nil
}

// takeRelease takes a release that the add-on has made and the cache does not know yet. One of
// the name that belongs to somebody else is left alone, and told.
func (r *AddonReconciler) takeRelease(ctx context.Context, s *addonScope, key client.ObjectKey) error {
	found := &addonv1.TalosClusterAddonRelease{}
	if err := r.APIReader.Get(ctx, key, found); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !metav1.IsControlledBy(found, s.addon) {
		s.conflicts = append(s.conflicts, key.Name)
		s.again(releaseRetryInterval)
		return nil
	}
	err := r.syncRelease(ctx, s, found)
	s.releases = append(s.releases, *found)

	return err
}

// desire writes into a release what must be known to remove it, and by which labels it is found,
// and seen.
func desire(release *addonv1.TalosClusterAddonRelease, addon *addonv1.TalosClusterAddon) {
	objects.WatchAs(addon, release)
	labels.AddLabels(release, naming.Labels(addon.Name, release.Spec.ClusterName))
	release.Spec.DeletionPolicy = cmp.Or(addon.Spec.DeletionPolicy, addonv1.DeletionUninstall)
	release.Spec.TimeoutSeconds = ptr.To(ptr.Deref(addon.Spec.Release.TimeoutSeconds, addonv1.DefaultTimeoutSeconds))
}

func (r *AddonReconciler) syncRelease(ctx context.Context, s *addonScope, release *addonv1.TalosClusterAddonRelease) error {
	if !release.DeletionTimestamp.IsZero() {
		return nil
	}
	err := objects.Change(ctx, r.Client, release, func(release *addonv1.TalosClusterAddonRelease) {
		desire(release, s.addon)
		if s.addon.Spec.Rollout == (addonv1.RolloutSpec{}) {
			release.Spec.AdmittedDigest = ""
		}
	})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing TalosClusterAddonRelease %s: %w", release.Name, err)
	}

	return nil
}

// deleteDeselected deletes the release of a Cluster that is not selected. Whether it is not
// is asked live: after a move the releases may be in the cache before their Clusters are.
func (r *AddonReconciler) deleteDeselected(ctx context.Context, s *addonScope, release *addonv1.TalosClusterAddonRelease) error {
	cluster := &clusterv1.Cluster{}
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: release.Namespace, Name: release.Spec.ClusterName}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Cluster %s: %w", release.Spec.ClusterName, err)
	}
	if err == nil {
		selected, err := order.Selects(s.addon, cluster)
		if err != nil || (selected && cluster.DeletionTimestamp.IsZero()) || annotations.IsPaused(cluster, release) {
			return err
		}
	}

	return r.deleteRelease(ctx, s, release)
}

func (r *AddonReconciler) deleteRelease(ctx context.Context, s *addonScope, release *addonv1.TalosClusterAddonRelease) error {
	if !release.DeletionTimestamp.IsZero() {
		return nil
	}
	// Its policy may have been changed with the same edit.
	if err := r.syncRelease(ctx, s, release); err != nil {
		return err
	}
	if err := r.Client.Delete(ctx, release, client.Preconditions{UID: &release.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting TalosClusterAddonRelease %s: %w", release.Name, err)
	}
	r.Recorder.Eventf(s.addon, release, corev1.EventTypeNormal, "ClusterDeselected", "Delete", "The add-on is removed from Cluster %s", release.Spec.ClusterName)

	return nil
}

// admit lets a change go to further clusters, as far as the rollout is bounded.
func (r *AddonReconciler) admit(ctx context.Context, s *addonScope) error {
	if s.addon.Spec.Rollout == (addonv1.RolloutSpec{}) {
		return nil
	}
	admitted, stopped := order.Next(s.addon.Spec.Rollout, s.releases)
	s.stopped = stopped
	var errs []error
	for _, i := range admitted {
		release := &s.releases[i]
		err := objects.Change(ctx, r.Client, release, func(release *addonv1.TalosClusterAddonRelease) {
			release.Spec.AdmittedDigest = release.Status.DesiredDigest
		})
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, s.heed(release.Spec.ClusterName, fmt.Errorf("admitting TalosClusterAddonRelease %s: %w", release.Name, err)))
		}
	}

	return kerrors.NewAggregate(errs)
}

func namesOf(releases []addonv1.TalosClusterAddonRelease) string {
	names := make([]string, 0, len(releases))
	for i := range releases {
		names = append(names, releases[i].Name)
	}

	return listed(names, ", ")
}

// listed are the first of some texts, and how many more there are.
func listed(texts []string, separator string) string {
	if more := len(texts) - maxNamed; more > 0 {
		texts = append(slices.Clone(texts[:maxNamed]), fmt.Sprintf("and %d more", more))
	}

	return strings.Join(texts, separator)
}
