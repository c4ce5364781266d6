package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

// TestWhatIsMadeIsWatchedByTheSameManagers as the schedule or the store that it is made for.
func TestWhatIsMadeIsWatchedByTheSameManagers(t *testing.T) {
	watched := map[string]string{clusterv1.WatchLabel: "ours"}
	first := newScheduledBed(t, func(s *backupv1.TalosEtcdBackupSchedule) { s.Labels = watched })
	first.oneEachDay(1)
	b := newBedAt(t, first.bucket, first.key, first.clock.Now().Add(time.Hour))
	edit(b, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Labels = watched })
	b.settle()
	for _, made := range [][]backupv1.TalosEtcdBackup{first.allBackups(), b.allBackups()} {
		b.Expect(made).To(HaveLen(1))
		b.Expect(made[0].Labels).To(And(HaveKeyWithValue(clusterv1.WatchLabel, "ours"), HaveKeyWithValue(backupv1.ScheduleNameLabel, "daily")))
	}
}
