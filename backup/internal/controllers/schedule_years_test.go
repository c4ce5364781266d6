package controllers

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// years is a schedule that makes a backup of each day, and what was made of it.
type years struct {
	*bed

	zone *time.Location
	// days are those of the backups that were ever made, as clocks of the zone showed them
	// then, and taken when their snapshots were.
	days  []string
	taken []time.Time
}

// at changes the time zone of the schedule.
func (y *years) at(zone string) {
	y.t.Helper()
	var err error
	y.zone, err = time.LoadLocation(zone)
	y.Expect(err).NotTo(HaveOccurred())
	edit(y.bed, y.theSchedule(), func(s *backupv1.TalosEtcdBackupSchedule) { s.Spec.TimeZone = zone })
	y.reconcile()
}

func (y *years) reconcile() {
	y.t.Helper()
	_, err := y.schedules.Reconcile(y.t.Context(), requestOf(y.theSchedule()))
	y.Expect(err).NotTo(HaveOccurred())
	for len(y.events.Events) > 0 {
		<-y.events.Events
	}
}

// until has the clock go from each time to the next one at which the schedule asks for a look,
// and each backup be complete at once.
func (y *years) until(end time.Time) {
	y.t.Helper()
	for next := y.theSchedule().Status.NextAt.Time; next.Before(end); next = y.theSchedule().Status.NextAt.Time {
		y.Expect(next).To(BeTemporally(">", y.clock.Now()))
		y.clock.SetTime(next)
		y.reconcile()
		y.complete()
	}
	y.clock.SetTime(end)
	y.reconcile()
}

// complete has the backups be in the store that were begun.
func (y *years) complete() {
	y.t.Helper()
	for _, made := range y.allBackups() {
		if made.Annotations[backupv1.OutcomeAnnotation] != "" {
			continue
		}
		scheduled, err := time.Parse(time.RFC3339, made.Annotations[backupv1.ScheduledAtAnnotation])
		y.Expect(err).NotTo(HaveOccurred())
		y.days, y.taken = append(y.days, scheduled.In(y.zone).Format(time.DateOnly)), append(y.taken, y.clock.Now())
		made.Annotations[backupv1.OutcomeAnnotation], made.Annotations[backupv1.ClusterIdentityAnnotation] = outcomeCompleted, identityOf(bundleOf(y, "prod"))
		y.Expect(y.client.Update(y.t.Context(), &made)).To(Succeed())
		condition.Set(&made, backupv1.CompletedCondition, condition.True(backupv1.CompletedReason, ""))
		condition.Set(&made, backupv1.VerifiedCondition, condition.True(backupv1.VerifiedReason, ""))
		made.Status.Snapshot.TakenAt = metav1.NewTime(y.clock.Now())
		made.Status.Verification = backupv1.VerificationStatus{Level: backupv1.VerificationDigest, At: made.Status.Snapshot.TakenAt}
		y.Expect(y.client.Status().Update(y.t.Context(), &made)).To(Succeed())
	}
}

// held are when the snapshots were taken that are held, the newest first.
func (y *years) held() (taken []string) {
	y.t.Helper()
	for _, backup := range y.allBackups() {
		taken = append(taken, backup.Status.Snapshot.TakenAt.UTC().Format(time.RFC3339))
	}
	slices.Sort(taken)
	slices.Reverse(taken)

	return taken
}

// wanted are those of all that were ever made of which the calendar of the zone says that
// they are to be held, the newest first.
func (y *years) wanted(last, weeks, months int) (taken []string) {
	week, month := "", ""
	for _, at := range slices.Backward(y.taken) {
		shown := at.In(y.zone)
		monday := shown.AddDate(0, 0, -(int(shown.Weekday())+6)%7).Format(time.DateOnly)
		isKept := last > 0
		last--
		if monday != week && weeks > 0 {
			weeks, isKept = weeks-1, true
		}
		if first := shown.Format("2006-01"); first != month {
			month = first
			if months > 0 {
				months, isKept = months-1, true
			}
		}
		week = monday
		if isKept {
			taken = append(taken, at.UTC().Format(time.RFC3339))
		}
	}

	return taken
}

// TestFiveYearsOfASchedule, in zones whose clocks leave its time out once a year, and show it
// twice once a year: there is one backup of each day that a calendar has, none of another, and
// those are held that retention asks for. Its time zone is changed once, by day.
func TestFiveYearsOfASchedule(t *testing.T) {
	t.Parallel()
	const last, weeks, months = 4, 5, 12
	begin := time.Date(2025, time.December, 31, 23, 0, 0, 0, time.UTC) // New year in Berlin.
	bucket, key := newBucket(t, true)
	y := &years{bed: newBedAt(t, bucket, key, begin)}
	y.schedule(func(s *backupv1.TalosEtcdBackupSchedule) {
		s.Spec.Schedule, s.Spec.JitterSeconds = "30 2 * * *", ptr.To(int32(600))
		s.Spec.Retention = backupv1.Retention{Last: ptr.To(int32(last)), Weekly: ptr.To(int32(weeks)), Monthly: ptr.To(int32(months))}
	})
	y.at("Europe/Berlin")
	y.until(time.Date(2028, time.June, 15, 12, 0, 0, 0, time.UTC))
	y.Expect(y.held()).To(Equal(y.wanted(last, weeks, months)))
	y.at("Pacific/Auckland")
	y.until(time.Date(2030, time.December, 31, 11, 0, 0, 0, time.UTC)) // New year in Auckland.
	y.Expect(y.held()).To(Equal(y.wanted(last, weeks, months)))
	y.Expect(len(y.held())).To(BeNumerically(">", months))

	var calendar []string
	for day := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC); day.Year() < 2031; day = day.AddDate(0, 0, 1) {
		calendar = append(calendar, day.Format(time.DateOnly))
	}
	y.Expect(calendar).To(HaveLen(1826))
	y.Expect(y.days).To(Equal(calendar))
	y.Expect(y.snapshots.Load()).To(BeZero(), "nothing is stored here")
	y.Expect(says(y.theSchedule(), backupv1.ScheduleReadyCondition)).To(Equal("True Ready"))
}
