package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
)

// dataKey is the key of the machine configuration in the bootstrap data Secret.
const dataKey = "value"

// errForeignSecret says that a Secret of the name belongs to somebody else.
var errForeignSecret = errors.New("the Secret belongs to somebody else")

// reconcileDataSecret renders the machine configuration once. A Secret that
// exists is never written again: a machine may have consumed it.
func (r *Reconciler) reconcileDataSecret(ctx context.Context, s *scope) error {
	err := r.findDataSecret(ctx, s)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errForeignSecret):
		s.dataSecret = condition.Falsef(bootstrapv1.DataSecretForeignReason, "Secret %s belongs to somebody else; delete or rename it", s.config.Name)
		return nil
	case !apierrors.IsNotFound(err):
		s.dataSecret = failed(bootstrapv1.DataSecretErrorReason, "The Secret with the machine configuration cannot be read or taken over", err)
		return fmt.Errorf("reading the bootstrap data Secret: %w", err)
	}

	if err := checkRole(s); err != nil {
		s.dataSecret = refusal(err)
		return nil
	}
	if s.dataSecret = waitingFor(s); s.dataSecret.Status != "" {
		s.waits = true
		return nil
	}
	configuration, err := render(s)
	if err != nil {
		s.dataSecret = refusal(err)
		return nil
	}
	if s.networkProblem != "" && s.config.Spec.GenerateType != bootstrapv1.GenerateTypeNone {
		s.dataSecret, s.waits = condition.False(bootstrapv1.ClusterNetworkChangedReason, s.networkProblem), true
		return nil
	}
	if why, held := s.config.Annotations[bootstrapv1.HoldBootstrapDataAnnotation]; held {
		s.dataSecret, s.waits = heldBack(why), true
		return nil
	}
	if err := r.createDataSecret(ctx, s, configuration); err != nil {
		s.dataSecret = failed(bootstrapv1.DataSecretErrorReason, "The Secret with the machine configuration cannot be created", err)
		return err
	}
	s.found()

	return nil
}

// maxHoldMessage bounds what a condition repeats of an annotation, in bytes.
const maxHoldMessage = 1024

// heldBack is what the condition says while the owner holds the bootstrap data
// back. It comes after the rendering, so that a configuration that cannot be
// made is known before its turn comes.
func heldBack(why string) condition.Finding {
	why = strings.TrimSpace(why)
	if len(why) > maxHoldMessage {
		why = strings.ToValidUTF8(why[:maxHoldMessage], "")
	}
	if why == "" {
		why = "Held back by annotation " + bootstrapv1.HoldBootstrapDataAnnotation
	}

	return condition.False(bootstrapv1.HeldByOwnerReason, why)
}

func (s *scope) found() {
	s.stored = true
	s.dataSecret = condition.True(bootstrapv1.DataSecretAvailableReason, "")
}

// findDataSecret looks for the Secret of this config. One whose owner has the
// name of this config but another UID came with it from another management
// cluster, or out of a backup, and is taken over.
func (r *Reconciler) findDataSecret(ctx context.Context, s *scope) error {
	stored := &corev1.Secret{}
	if err := r.secrets().Get(ctx, client.ObjectKeyFromObject(s.config), stored, secretcache.MetadataOnly{}); err != nil {
		return err
	}
	owner := metav1.GetControllerOf(stored)
	if owner == nil && s.isNamed(stored) {
		if err := objects.Change(ctx, r.Client, stored, func(secret *corev1.Secret) {
			secret.OwnerReferences = append(secret.OwnerReferences, controllerOwner(s.config))
		}); err != nil {
			return fmt.Errorf("owning Secret %s again: %w", stored.Name, err)
		}
		owner = metav1.GetControllerOf(stored)
	}
	if owner == nil || owner.Kind != bootstrapv1.TalosConfigKind || owner.Name != s.config.Name || groupOf(owner) != bootstrapv1.GroupVersion.Group {
		return errForeignSecret
	}
	if wanted := controllerOwner(s.config); owner.UID != wanted.UID || owner.APIVersion != wanted.APIVersion {
		if err := objects.Change(ctx, r.Client, stored, func(secret *corev1.Secret) {
			for i := range secret.OwnerReferences {
				if secret.OwnerReferences[i].UID == owner.UID {
					secret.OwnerReferences[i] = controllerOwner(s.config)
				}
			}
		}); err != nil {
			return fmt.Errorf("taking Secret %s over: %w", stored.Name, err)
		}
	}
	s.found()

	return nil
}

// isNamed reports whether the Machine, or the status of the config, names a Secret as
// the bootstrap data: one that lost its owner is still ours.
func (s *scope) isNamed(secret *corev1.Secret) bool {
	byMachine := s.machine != nil && ptr.Deref(s.machine.Spec.Bootstrap.DataSecretName, "") == secret.Name

	return secret.Type == clusterv1.ClusterSecretType && (byMachine || s.config.Status.DataSecretName == secret.Name)
}

func groupOf(owner *metav1.OwnerReference) string {
	version, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return ""
	}

	return version.Group
}

func controllerOwner(config *bootstrapv1.TalosConfig) metav1.OwnerReference {
	return *metav1.NewControllerRef(config, bootstrapv1.GroupVersion.WithKind(bootstrapv1.TalosConfigKind))
}

func (r *Reconciler) createDataSecret(ctx context.Context, s *scope, configuration []byte) error {
	made := &corev1.Secret{
		ObjectMeta: objectMeta(s.config.Namespace, s.config.Name),
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{dataKey: configuration},
	}
	made.Labels = map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name}
	made.OwnerReferences = []metav1.OwnerReference{controllerOwner(s.config)}
	if err := r.Client.Create(ctx, made); err != nil {
		return fmt.Errorf("creating the bootstrap data Secret: %w", err)
	}
	r.Recorder.Eventf(s.config, s.machine, corev1.EventTypeNormal, "DataSecretCreated", "Create", "Rendered the machine configuration")

	return nil
}

// refusal is what the condition says about a configuration that cannot be made.
func refusal(err error) condition.Finding {
	message := strings.TrimSpace(err.Error())
	if _, isPatch := errors.AsType[*configgen.PatchError](err); isPatch {
		return condition.False(bootstrapv1.PatchFailedReason, message)
	}

	return condition.False(bootstrapv1.InvalidConfigurationReason, message)
}
