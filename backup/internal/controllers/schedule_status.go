package controllers

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

// maxClusters is how many Clusters a status tells of. It is the bound of the API.
const maxClusters = 2000

// reconcileStatus derives the status from what was found, and writes it. Where some could not
// be read, all but the condition stays as it was.
func (r *ScheduleReconciler) reconcileStatus(ctx context.Context, s *scheduleScope) error {
	if s.ready.Status == "" {
		s.ready = s.readyFound()
	}
	condition.Set(s.schedule, backupv1.ScheduleReadyCondition, s.ready)
	if s.unread == nil {
		s.tell()
	}
	if err := objects.PatchStatus(ctx, r.Client, s.before, s.schedule); err != nil {
		return fmt.Errorf("writing the TalosEtcdBackupSchedule: %w", err)
	}

	return nil
}

// tell has the status say what was found.
func (s *scheduleScope) tell() {
	status := &s.schedule.Status
	status.SelectedClusters = ptr.To(int32(len(s.clusters))) //nolint:gosec // G115: no namespace has 2^31 Clusters.
	status.IntervalSeconds = nil
	if s.parsed != nil {
		status.IntervalSeconds = ptr.To(int64(s.parsed.Interval().Seconds()))
	}
	status.Clusters = nil
	if next := metav1.NewTime(s.next); !next.Equal(&status.NextAt) {
		status.NextAt = next
	}
	for _, cluster := range s.clusters[:min(len(s.clusters), maxClusters)] {
		status.Clusters = append(status.Clusters, cluster.status)
	}
	status.ObservedGeneration = s.schedule.Generation
}

// readyFound says whether the newest backup of each Cluster is complete.
func (s *scheduleScope) readyFound() condition.Finding {
	var (
		failed, missed, refused []string
		refusal                 error
	)
	for i := range s.clusters {
		cluster := &s.clusters[i]
		if hasFailed(cluster.backups) {
			failed = append(failed, cluster.Name)
		}
		if ptr.Deref(cluster.status.Missed, 0) > 0 {
			missed = append(missed, cluster.Name)
		}
		if cluster.refusal != nil {
			refused, refusal = append(refused, cluster.Name), cmp.Or(refusal, cluster.refusal)
		}
	}
	switch {
	case s.unread != nil:
		return condition.Unknown(backupv1.NotYetKnownReason, objects.Explain("Clusters and backups cannot be read; it is tried again", s.unread))
	case len(refused) > 0:
		return condition.False(backupv1.BackupMissedReason, objects.Explain("backups cannot be begun of Clusters "+someOf(refused)+"; it is tried again", refusal))
	case len(failed) > 0:
		return condition.False(backupv1.BackupFailedReason, "the newest backup has failed of Clusters "+someOf(failed))
	case len(missed) > 0:
		return condition.False(backupv1.BackupMissedReason, "backups were not begun in time of Clusters "+someOf(missed))
	case len(s.clusters) == 0:
		return condition.True(backupv1.NoClusterSelectedReason, "no Cluster of the namespace has the labels that clusterSelector asks for")
	}

	return condition.True(backupv1.ReadyReason, "")
}

// hasFailed reports whether the newest of the backups that have ended has failed, or is
// lost. They are sorted, the newest first.
func hasFailed(backups []*backupv1.TalosEtcdBackup) bool {
	for _, backup := range backups {
		if outcome := backup.Annotations[backupv1.OutcomeAnnotation]; outcome != "" {
			return outcome == outcomeFailed || isLost(backup)
		}
	}

	return false
}

// someOf names the first of many.
func someOf(names []string) string {
	text := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if len(names) > maxNamed {
		text += fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}

	return text
}
