package controllers

import (
	"cmp"
	"context"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/schedule"
)

// reconcileVerification asks for a verification of the newest backup of a Cluster, when one
// is due. The backups themselves tell when that was last done.
func (r *ScheduleReconciler) reconcileVerification(ctx context.Context, s *scheduleScope, cluster *scheduledCluster) error {
	if s.verification == nil || s.isSuspended() {
		return nil
	}
	since := s.schedule.CreationTimestamp.Time
	for _, backup := range cluster.backups {
		if at := askedAt(backup); at.After(since) && !schedule.IsAhead(at, r.Clock.Now()) {
			since = at
		}
	}
	jitter := schedule.Jitter(cluster.Namespace+"/"+cluster.Name, time.Duration(ptr.Deref(s.schedule.Spec.JitterSeconds, backupv1.DefaultJitterSeconds))*time.Second)
	due := s.verification.Due(since, r.Clock.Now(), jitter, 0)
	s.again(due.Next)
	if due.At.IsZero() {
		return nil
	}
	complete := cluster.complete(r.Clock.Now())
	if len(complete) == 0 {
		return nil
	}
	level := cmp.Or(s.schedule.Spec.Verification.Level, backupv1.VerificationSnapshot)

	return annotate(ctx, r.Client, complete[0], map[string]string{backupv1.VerifyAnnotation: string(level) + "/" + due.At.UTC().Format(time.RFC3339)})
}

// askedAt is the time for which a schedule has asked for a verification of a backup; zero
// when none has.
func askedAt(backup *backupv1.TalosEtcdBackup) time.Time {
	_, when, _ := strings.Cut(backup.Annotations[backupv1.VerifyAnnotation], "/")
	at, err := time.Parse(time.RFC3339, when)
	if err != nil {
		return time.Time{}
	}

	return at
}
