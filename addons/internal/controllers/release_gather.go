package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/values"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

const (
	// defaultValuesKey is the key of values in a Secret or ConfigMap.
	defaultValuesKey = "values.yaml"
)

// gatherConnection reports whether the workload cluster can be reached.
func (r *ReleaseReconciler) gatherConnection(ctx context.Context, s *releaseScope) (bool, error) {
	if !ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false) {
		s.reachable = condition.False(addonv1.WaitingForControlPlaneReason, "the control plane of the Cluster is not initialized")
		return false, nil
	}
	_, err := r.ClusterCache.GetRESTConfig(ctx, client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		if !r.hasTriedToConnect(ctx, s) {
			// What was known before the manager was started stays.
			s.again(unreachableInterval)
			return false, nil
		}
		s.reachable = condition.Unknown(addonv1.ClusterUnreachableReason, "there is no connection to the API server of the Cluster; see condition RemoteConnectionProbe of the Cluster")
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("connecting to the Cluster: %w", err)
	}
	s.reachable = condition.True(addonv1.ClusterReachableReason, "")

	return true, nil
}

// hasTriedToConnect reports whether a connection to the Cluster was tried since the manager was
// started.
func (r *ReleaseReconciler) hasTriedToConnect(ctx context.Context, s *releaseScope) bool {
	return !r.ClusterCache.GetHealthCheckingState(ctx, client.ObjectKeyFromObject(s.cluster)).LastProbeTime.IsZero()
}

// gatherDigest makes the values and the digest of what is asked for. It reports whether
// there is one.
func (r *ReleaseReconciler) gatherDigest(ctx context.Context, s *releaseScope) (bool, error) {
	chart := s.addon.Status.Chart
	if chart.Digest == "" || chart.SourceDigest != digestOf(withoutInterval(s.addon.Spec.Source)) {
		s.released = condition.Unknown(addonv1.WaitingForChartReason, "see condition ChartAvailable of the TalosClusterAddon")
		return false, nil
	}
	parts, err := r.parts(ctx, s)
	if err == nil {
		s.values, err = values.Merge(parts)
	}
	if said := (*values.Error)(nil); errors.As(err, &said) {
		s.released = condition.False(addonv1.ValuesInvalidReason, s.hidden.In(said.Error()))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	asked := wish{Chart: chart.Digest, Values: s.values, Release: s.addon.Spec.Release, Phase: s.addon.Spec.Phase}
	s.digest = strings.TrimPrefix(digestOf(asked), "sha256:")[:maxDigest]
	s.release.Status.DesiredDigest, s.release.Status.AddonGeneration = s.digest, s.addon.Generation

	return true, nil
}

// maxDigest is how many digits of a digest are kept: it is the value of a label.
const maxDigest = 40

// wish is what is asked for: a digest of it decides whether anything is to be done.
type wish struct {
	Chart   string
	Values  map[string]any
	Release addonv1.ReleaseSpec
	Phase   addonv1.Phase
}

// parts are the parts of the values, in the order in which they are merged.
func (r *ReleaseReconciler) parts(ctx context.Context, s *releaseScope) ([]values.Part, error) {
	var parts []values.Part
	add := func(part values.Part, isSecret bool) {
		s.hidden.Hide(part, isSecret)
		parts = append(parts, part)
	}
	if s.addon.Spec.Values != nil {
		add(values.Part{From: "values", Text: s.addon.Spec.Values.Raw}, false)
	}
	if s.addon.Spec.ValuesTemplate != "" {
		data, err := r.templateData(ctx, s)
		if err != nil {
			return nil, err
		}
		part, err := values.Render(s.addon.Spec.ValuesTemplate, data)
		if err != nil {
			return nil, err
		}
		add(part, false)
	}
	for i, from := range s.addon.Spec.ValuesFrom {
		key := cmp.Or(from.Key, defaultValuesKey)
		part := values.Part{From: fmt.Sprintf("valuesFrom[%d]: %s %s, key %s", i, from.Kind, from.Name, key)}
		found, err := r.Content.Get(ctx, from.Kind, types.NamespacedName{Namespace: s.addon.Namespace, Name: from.Name})
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		text, there := found.Data[key]
		if err != nil || !there {
			if from.Presence == addonv1.PresenceOptional {
				continue
			}
			return nil, &values.Error{From: part.From, Message: "it is missing"}
		}
		part.Text = text
		add(part, from.Kind == addonv1.SecretValues)
	}

	return parts, nil
}

// templateData are the objects that a template is given.
func (r *ReleaseReconciler) templateData(ctx context.Context, s *releaseScope) (values.Data, error) {
	cluster := s.cluster.DeepCopy()
	cluster.ManagedFields = nil
	cluster.SetGroupVersionKind(clusterv1.GroupVersion.WithKind(clusterv1.ClusterKind))
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cluster)
	if err != nil {
		return values.Data{}, fmt.Errorf("preparing the Cluster for the template: %w", err)
	}
	data := values.Data{Cluster: object}
	for _, other := range []struct {
		ref  clusterv1.ContractVersionedObjectReference
		into *map[string]any
	}{{s.cluster.Spec.InfrastructureRef, &data.InfraCluster}, {s.cluster.Spec.ControlPlaneRef, &data.ControlPlane}} {
		if other.ref.Name == "" {
			continue
		}
		found, err := external.GetObjectFromContractVersionedRef(ctx, r.APIReader, other.ref, s.cluster.Namespace)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return values.Data{}, fmt.Errorf("reading %s %s for the template: %w", other.ref.Kind, other.ref.Name, err)
		}
		if found.GetNamespace() != s.cluster.Namespace {
			// An object of no namespace is everybody's, and this one may not be for all.
			return values.Data{}, &values.Error{From: "valuesTemplate", Message: fmt.Sprintf("%s %s, to which the Cluster refers, is in no namespace", other.ref.Kind, other.ref.Name)}
		}
		found.SetManagedFields(nil)
		*other.into = found.Object
	}

	return data, nil
}

// gate reports whether the release may be changed now. One that is as it is asked for may
// be looked after whatever the others do.
func (r *ReleaseReconciler) gate(ctx context.Context, s *releaseScope) (bool, error) {
	if s.release.Status.Deployed.Digest == s.digest {
		return true, nil
	}
	addons, releases := &addonv1.TalosClusterAddonList{}, &addonv1.TalosClusterAddonReleaseList{}
	if err := r.Client.List(ctx, addons, client.InNamespace(s.addon.Namespace)); err != nil {
		return false, fmt.Errorf("listing the TalosClusterAddons: %w", err)
	}
	ofCluster := client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}
	if err := r.Client.List(ctx, releases, client.InNamespace(s.addon.Namespace), ofCluster); err != nil {
		return false, fmt.Errorf("listing the TalosClusterAddonReleases: %w", err)
	}
	s.released = order.WaitsFor(s.addon, s.cluster, addons.Items, releases.Items)
	if s.released.Status == "" && s.addon.Spec.Rollout != (addonv1.RolloutSpec{}) && s.release.Spec.AdmittedDigest != s.digest {
		s.released = condition.Unknown(addonv1.WaitingForRolloutReason, "other clusters are changed first")
	}

	return s.released.Status == "", nil
}

// taskOf is the job that makes a release what is asked for.
func (r *ReleaseReconciler) taskOf(s *releaseScope) release.Task {
	spec, status := &s.addon.Spec, &s.release.Status
	timeout := time.Duration(ptr.Deref(spec.Release.TimeoutSeconds, addonv1.DefaultTimeoutSeconds)) * time.Second
	owner := naming.Owner(s.release.Namespace, s.cluster.Name, s.addon.Name)
	task := release.Task{
		Facts: release.Facts{
			Owner: owner, Digest: s.digest, Timeout: timeout, Adoption: spec.Release.Adoption, Drift: spec.Drift.Mode, OnFailure: spec.Failure.OnFailure,
			Retries: ptr.Deref(spec.Failure.Retries, addonv1.DefaultRetries), Tests: spec.Release.Tests == addonv1.TestRun,
		},
		Request: release.Request{
			Target: targetOf(s.release), Owner: owner, Digest: s.digest, Values: s.values, Options: release.Options{
				CreateNamespace: spec.Release.NamespacePolicy != addonv1.NamespaceRequire, CRDs: cmp.Or(spec.Release.CRDs, addonv1.CRDCreate),
				Wait: cmp.Or(spec.Release.Wait, addonv1.WaitResources), Timeout: timeout,
				HistoryLimit: int(ptr.Deref(spec.Release.HistoryLimit, addonv1.DefaultHistoryLimit)),
			},
		},
		LookForDrift: r.driftIsDue(s) == 0,
	}
	if spec.Phase == addonv1.PhaseNetwork {
		task.Request.Options.Wait, task.LookWhetherReady = addonv1.WaitNone, true
	}
	if status.Failure.Digest == s.digest {
		task.Failures, task.FailedAt = status.Failure.Count, status.Failure.At.Time
	}

	return task
}

func targetOf(of *addonv1.TalosClusterAddonRelease) release.Target {
	return release.Target{Namespace: of.Spec.ReleaseNamespace, Name: of.Spec.ReleaseName}
}

// never is that drift is not looked for.
const never = time.Duration(-1)

// driftIsDue is how long to wait until drift is looked for: 0 when it is due, and never
// when it is not looked for.
func (r *ReleaseReconciler) driftIsDue(s *releaseScope) time.Duration {
	if mode := s.addon.Spec.Drift.Mode; mode == "" || mode == addonv1.DriftIgnore {
		return never
	}
	every := time.Duration(ptr.Deref(s.addon.Spec.Drift.IntervalSeconds, addonv1.DefaultDriftIntervalSeconds)) * time.Second

	return max(s.release.Status.DriftCheckedAt.Add(every).Sub(r.Clock.Now()), 0)
}
