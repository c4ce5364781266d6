package controllers

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// maxRequest is how much of the annotation is kept.
const maxRequest = 256

// requestOfVerification is the value of the annotation that asks for a verification, and its level;
// empty when it asks for none, or was heeded. An unknown level is none.
func requestOfVerification(backup *backupv1.TalosEtcdBackup) (string, backupv1.VerificationLevel) {
	value := condition.Cut(backup.Annotations[backupv1.VerifyAnnotation], maxRequest)
	if value == backup.Status.Verification.Request {
		return "", ""
	}
	name, _, _ := strings.Cut(value, "/")
	switch level := backupv1.VerificationLevel(name); level {
	case backupv1.VerificationDigest, backupv1.VerificationSnapshot, backupv1.VerificationRestore:
		return value, level
	}

	return value, ""
}

// isSettled reports whether nothing is to be done about a backup: it has ended, its status
// says so, and nobody asks for a verification that can be made.
func isSettled(backup *backupv1.TalosEtcdBackup) bool {
	hasEnded := backup.Annotations[backupv1.OutcomeAnnotation] != "" || isImported(backup)
	_, level := requestOfVerification(backup)

	return hasEnded && isTold(backup) && (level == "" || !conditions.IsTrue(backup, backupv1.CompletedCondition))
}

// refuseRequest heeds an annotation that asks for a level that there is not.
func (r *BackupReconciler) refuseRequest(s *backupScope) {
	request, level := requestOfVerification(s.backup)
	if request == "" || level != "" || s.backup.Status.Verification.Level == "" {
		return
	}
	s.backup.Status.Verification.Request = request
	r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, "VerificationInvalid", "Verify",
		"The annotation %s asks for %q, which is no level: Digest, Snapshot and Restore are", backupv1.VerifyAnnotation, request)
}

// gatherVerification gathers how a backup is verified, and reports whether it can be.
func (r *BackupReconciler) gatherVerification(ctx context.Context, s *backupScope, work *attempt) (bool, error) {
	work.request, work.level = requestOfVerification(s.backup)
	work.isReadOnly = s.store.Spec.AccessMode == backupv1.AccessReadOnly
	if work.level == "" {
		work.request, work.level = "", backupv1.VerificationDigest
	}
	if work.level == backupv1.VerificationDigest {
		return true, nil
	}
	var err error
	work.identities, err = r.Stores.Identities(ctx, s.store, "")
	if invalid := (*stores.InvalidError)(nil); errors.As(err, &invalid) {
		s.fail(r.Clock.Now(), err)
		s.unverified(backupv1.NoIdentityReason, invalid.Message)
		s.again(retryAfter(s.backup.Status.Failure.Count))

		return false, nil
	}

	return err == nil, err
}

// verify verifies a backup, and stores what was found beside it.
func (a *attempt) verify(ctx context.Context, result *Result) error {
	report, err := a.verifier.Verify(ctx, a.level, a.archive, result.Manifest, a.identities)
	if err != nil {
		return err
	}
	result.Verified, result.Report = a.clock.Now(), report
	if a.level == backupv1.VerificationDigest || a.isReadOnly {
		return nil
	}

	return a.archive.Verified(ctx, a.draft.Name, result.Verified, report)
}

// takeVerification takes in how a backup was verified.
func (r *BackupReconciler) takeVerification(s *backupScope, result *Result) {
	status := &s.backup.Status
	switch {
	case result.Err == nil:
		status.Failure = backupv1.BackupFailure{}
		s.verified = condition.True(backupv1.VerifiedReason, "")
		s.recordVerification(result, result.Verified)
	case isDamage(result.Err):
		s.verified = condition.False(backupv1.DamagedReason, result.Err.Error())
		s.recordVerification(result, r.Clock.Now())
		r.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, backupv1.DamagedReason, "Verify", "%s", s.verified.Message)
	default:
		s.fail(r.Clock.Now(), result.Err)
		s.unverified(verificationReason(result), result.Err.Error()+"; it is tried again")
	}
}

// unverified says why a verification cannot be made. What is known to be damaged stays so.
func (s *backupScope) unverified(reason, message string) {
	if conditions.GetReason(s.backup, backupv1.VerifiedCondition) != backupv1.DamagedReason {
		s.verified = condition.Unknown(reason, message)
	}
}

func (s *backupScope) recordVerification(result *Result, at time.Time) {
	found := &s.backup.Status.Verification
	request := found.Request
	if result.Request != "" {
		request = result.Request
	}
	*found = backupv1.VerificationStatus{Level: result.Level, At: metav1.NewTime(at.Truncate(time.Second)), Request: request}
	if report := result.Report; report != nil && report.Revision > 0 {
		found.Revision, found.Keys = ptr.To(report.Revision), ptr.To(report.Keys)
	}
}

// isDamage reports whether an error says that a backup is not sound.
func isDamage(err error) bool {
	return errors.Is(err, pipeline.ErrStored) || errors.Is(err, etcdtool.ErrSnapshot) || errors.Is(err, verify.ErrDiffers)
}

// verificationReason is why a verification could not be carried out.
func verificationReason(result *Result) string {
	switch err := result.Err; {
	case errors.Is(err, pipeline.ErrIdentity):
		return backupv1.NoIdentityReason
	case errors.Is(err, scratch.ErrShort):
		return backupv1.ScratchSpaceShortReason
	case errors.Is(err, etcdtool.ErrRelease):
		return backupv1.EtcdReleaseUnknownReason
	case store.ReasonOf(err) != "":
		return string(store.ReasonOf(err))
	}

	return backupv1.VerificationFailedReason
}
