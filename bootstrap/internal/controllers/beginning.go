package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/clusterrecord"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// Words for what is other of a bundle than the cluster began with.
const (
	otherKeys       = "its CAs, keys or tokens are others"
	otherEncryption = "its key for the encryption of Secrets in etcd is another one"
)

const restoreIt = "Restore it from a backup"

// beginning is what shows that a cluster has begun: that a machine may run with
// its secrets, so that it never gets others (design D6).
type beginning struct {
	// shown says in words what shows it; empty when nothing does.
	shown string
	// wayOut says what to do about a bundle that is missing.
	wayOut string
	// digest is that of the bundle, where the control plane records it.
	digest string
}

// judge compares what is recorded of a cluster with what is there now. kept is
// what is to be recorded from now on; changed says in words what is other of the
// bundle, which then must not be used. A record counts only for a cluster that has
// begun: the Secret on which it is may have outlived another Cluster of the name.
func judge(stored, present clusterrecord.Record, begun beginning, allowNetwork bool) (kept clusterrecord.Record, changed string) {
	if begun.shown == "" {
		return present, ""
	}
	known := stored.Bundle
	if known == "" {
		known = begun.digest
	}
	switch {
	case known != "" && known != present.Bundle:
		return stored, otherKeys
	case stored.Encryption != "" && stored.Encryption != present.Encryption:
		return stored, otherEncryption
	}
	kept = present
	if stored.Network != "" && !allowNetwork {
		kept.Network = stored.Network
	}

	return kept, ""
}

// beginning looks for what shows that the cluster has begun. All of it goes with
// the Cluster, and all but the first is found again after a move or a restore.
func (r *Reconciler) beginning(ctx context.Context, s *scope, ca *corev1.Secret) (beginning, error) {
	found := beginning{wayOut: restoreIt}
	recorded, err := r.controlPlaneRecords(ctx, s)
	if err != nil {
		return found, err
	}
	found.digest = recorded[controlplanev1.BundleDigestAnnotation]
	switch {
	case ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false):
		found.shown = "the control plane is initialized"
	case found.digest != "" || recorded[controlplanev1.BootstrapIntentAnnotation] != "":
		found.shown = fmt.Sprintf("%s %s records", s.cluster.Spec.ControlPlaneRef.Kind, s.cluster.Spec.ControlPlaneRef.Name)
	}
	if found.shown != "" {
		return found, nil
	}
	if found.shown, err = r.configuredMachine(ctx, s); err != nil || found.shown != "" {
		return found, err
	}
	if ca != nil && clusterrecord.Of(ca).Bundle != "" && metav1.HasAnnotation(ca.ObjectMeta, bootstrapv1.GeneratedAnnotation) {
		name := secrets.CAName(s.cluster.Name)
		found.shown = "Secret " + name + " records"
		found.wayOut = restoreIt + ", or, if no machine ever ran with it, delete Secret " + name
	}

	return found, nil
}

// configuredMachine says in words which machine of the cluster has, or may have, a
// configuration; empty when none.
func (r *Reconciler) configuredMachine(ctx context.Context, s *scope) (string, error) {
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client, s.cluster, collections.ControlPlaneMachines(s.cluster.Name))
	if err != nil {
		return "", fmt.Errorf("listing the control plane Machines: %w", err)
	}
	for _, machine := range machines.SortedByCreationTimestamp() {
		if ptr.Deref(machine.Spec.Bootstrap.DataSecretName, "") != "" || machine.Spec.ProviderID != "" {
			return "Machine " + machine.Name + " shows", nil
		}
	}
	rendered, err := r.renderedConfigs(ctx, s)
	if err != nil || len(rendered) == 0 {
		return "", err
	}

	return "TalosConfig " + rendered[0] + " shows", nil
}

// controlPlaneRecords are the annotations of the TalosControlPlane of the Cluster;
// none where it has another control plane, or none.
func (r *Reconciler) controlPlaneRecords(ctx context.Context, s *scope) (map[string]string, error) {
	if !hasTalosControlPlane(s.cluster) {
		return nil, nil
	}
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
	name := s.cluster.Spec.ControlPlaneRef.Name
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, found)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil // Another provider may have a kind of that name.
	case err != nil:
		return nil, fmt.Errorf("reading TalosControlPlane %s: %w", name, err)
	}

	return found.Annotations, nil
}

// renderedConfigs are the names of the TalosConfigs of the Cluster for which a
// configuration was rendered from the bundle.
func (r *Reconciler) renderedConfigs(ctx context.Context, s *scope) ([]string, error) {
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client, s.cluster)
	if err != nil {
		return nil, fmt.Errorf("listing the Machines of the Cluster: %w", err)
	}
	list := &bootstrapv1.TalosConfigList{}
	if err := r.Client.List(ctx, list, client.InNamespace(s.cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}); err != nil {
		return nil, fmt.Errorf("listing the TalosConfigs of the Cluster: %w", err)
	}
	named := map[string]bool{}
	for _, machine := range machines {
		named[ptr.Deref(machine.Spec.Bootstrap.DataSecretName, "")] = true
	}
	var names []string
	for i := range list.Items {
		config := &list.Items[i]
		if config.Spec.GenerateType == bootstrapv1.GenerateTypeNone {
			continue
		}
		// The status may be lost, and the cache may lag.
		there := ptr.Deref(config.Status.Initialization.DataSecretCreated, false) || named[config.Name]
		if !there {
			err := r.SecretCachingClient.Get(ctx, client.ObjectKeyFromObject(config), &corev1.Secret{}, secretcache.MetadataOnly{})
			if client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("looking for Secret %s: %w", config.Name, err)
			}
			there = err == nil
		}
		if there {
			names = append(names, config.Name)
		}
	}

	return names, nil
}
