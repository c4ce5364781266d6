// Package webhooks checks the objects of the backup provider at admission. What the rules of
// the kinds say is not said here again.
package webhooks

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/schedule"
)

// +kubebuilder:webhook:verbs=create;update,path=/validate-backup-cluster-x-k8s-io-v1alpha1-talosbackupstore,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=backup.cluster.x-k8s.io,resources=talosbackupstores,versions=v1alpha1,name=validation.talosbackupstore.backup.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1
// +kubebuilder:webhook:verbs=create;update,path=/validate-backup-cluster-x-k8s-io-v1alpha1-talosetcdbackupschedule,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,groups=backup.cluster.x-k8s.io,resources=talosetcdbackupschedules,versions=v1alpha1,name=validation.talosetcdbackupschedule.backup.cluster.x-k8s.io,sideEffects=None,admissionReviewVersions=v1

// validator checks the objects of a kind when they are made or changed.
type validator[T client.Object] struct {
	kind  string
	check func(T) field.ErrorList
	// warn says what a change brings with it; nil where there is nothing to say.
	warn func(before, after T) admission.Warnings
}

// setup registers the webhook of a kind with mgr.
func (v *validator[T]) setup(mgr ctrl.Manager, object T) error {
	if err := ctrl.NewWebhookManagedBy(mgr, object).WithValidator(v).Complete(); err != nil {
		return fmt.Errorf("setting up the %s webhook: %w", v.kind, err)
	}

	return nil
}

// ValidateCreate checks a new object.
func (v *validator[T]) ValidateCreate(_ context.Context, object T) (admission.Warnings, error) {
	return nil, v.validate(object)
}

// ValidateUpdate checks a changed object, unless it is being deleted.
func (v *validator[T]) ValidateUpdate(_ context.Context, before, after T) (admission.Warnings, error) {
	if !after.GetDeletionTimestamp().IsZero() {
		return nil, nil
	}
	var warnings admission.Warnings
	if v.warn != nil {
		warnings = v.warn(before, after)
	}

	return warnings, v.validate(after)
}

// ValidateDelete allows every deletion.
func (v *validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) {
	return nil, nil
}

func (v *validator[T]) validate(object T) error {
	errs := v.check(object)
	if len(errs) == 0 {
		return nil
	}

	return apierrors.NewInvalid(backupv1.GroupVersion.WithKind(v.kind).GroupKind(), object.GetName(), errs)
}

// SetupWithManager registers the webhooks of all kinds with mgr.
func SetupWithManager(mgr ctrl.Manager) error {
	return errors.Join(stores().setup(mgr, &backupv1.TalosBackupStore{}), schedules().setup(mgr, &backupv1.TalosEtcdBackupSchedule{}))
}

func stores() *validator[*backupv1.TalosBackupStore] {
	return &validator[*backupv1.TalosBackupStore]{kind: backupv1.TalosBackupStoreKind, warn: warnOfMove, check: func(store *backupv1.TalosBackupStore) field.ErrorList {
		if _, err := pipeline.ParseRecipients(store.Spec.Recipients); err != nil {
			// What was given may be a private key by mistake.
			return field.ErrorList{field.Invalid(field.NewPath("spec", "recipients"), field.OmitValueType{}, err.Error())}
		}

		return nil
	}}
}

// warnOfMove says what becomes of the backups of a store that is put elsewhere. A copy of the
// bucket has all of them.
func warnOfMove(before, after *backupv1.TalosBackupStore) admission.Warnings {
	backups := ptr.Deref(before.Status.Backups, 0)
	if backups == 0 {
		return nil
	}
	var changed []string
	for _, part := range []struct{ name, before, after string }{
		{"endpoint", strings.TrimSuffix(before.Spec.S3.Endpoint, "/"), strings.TrimSuffix(after.Spec.S3.Endpoint, "/")},
		{"bucket", before.Spec.S3.Bucket, after.Spec.S3.Bucket},
		{"prefix", before.Spec.S3.Prefix, after.Spec.S3.Prefix},
	} {
		if part.before != part.after {
			changed = append(changed, "spec.s3."+part.name)
		}
	}
	if len(changed) == 0 {
		return nil
	}

	return admission.Warnings{fmt.Sprintf("%s: %d TalosEtcdBackups are in the former place. What the new one lacks of them counts as lost, and stays in the former one when they are deleted: "+
		"copy it first, or make another TalosBackupStore", strings.Join(changed, ", "), backups)}
}

func schedules() *validator[*backupv1.TalosEtcdBackupSchedule] {
	return &validator[*backupv1.TalosEtcdBackupSchedule]{kind: backupv1.TalosEtcdBackupScheduleKind, check: func(of *backupv1.TalosEtcdBackupSchedule) field.ErrorList {
		spec, path := &of.Spec, field.NewPath("spec")
		var errs field.ErrorList
		if _, err := schedule.Parse(spec.Schedule, ""); err != nil {
			errs = append(errs, field.Invalid(path.Child("schedule"), spec.Schedule, err.Error()))
		}
		if again := spec.Verification.Schedule; again != "" {
			if _, err := schedule.Parse(again, ""); err != nil {
				errs = append(errs, field.Invalid(path.Child("verification", "schedule"), again, err.Error()))
			}
		}
		if _, err := schedule.Parse("* * * * *", spec.TimeZone); err != nil {
			errs = append(errs, field.Invalid(path.Child("timeZone"), spec.TimeZone, err.Error()))
		}
		if _, err := metav1.LabelSelectorAsSelector(&spec.ClusterSelector); err != nil {
			errs = append(errs, field.Invalid(path.Child("clusterSelector"), spec.ClusterSelector, err.Error()))
		}

		return errs
	}}
}
