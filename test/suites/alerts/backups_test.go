package alerts

import (
	"slices"
	"strings"
	"testing"
)

// Beginnings of series of a store, of a schedule with a cluster that it selects, and of a
// backup of that.
const (
	ofStore    = `capi_talosbackupstore_status_condition{namespace="fleet", name="s3", `
	ofSchedule = `capi_talosetcdbackupschedule_status_condition_reason{namespace="fleet", name="hourly", type="Ready", `
	ofBackup   = `capi_talosetcdbackup_status_condition_reason{namespace="fleet", name="hourly-blue-1", cluster_name="blue", `

	scheduled = `capi_talosetcdbackupschedule_created{namespace="fleet", name="hourly"} `
	asks      = `capi_talosetcdbackupschedule_status_interval_seconds{namespace="fleet", name="hourly"} `
	suspends  = `capi_talosetcdbackupschedule_spec_suspend{namespace="fleet", name="hourly"} `
	selects   = `capi_talosetcdbackupschedule_status_cluster{namespace="fleet", name="hourly", cluster_name="blue"} `
	completed = `capi_talosetcdbackupschedule_status_cluster_completed_at{namespace="fleet", name="hourly", cluster_name="blue"} `
	created   = `capi_taloscontrolplane_created{namespace="fleet", name="blue-control-plane", cluster_name="blue"} `
)

func TestBackupAlerts(t *testing.T) {
	const (
		notReady = "TalosBackupStoreNotReady: TalosBackupStore fleet/s3 cannot be used: no backup gets there"
		failed   = "TalosBackupFailed: The newest backup of a cluster of TalosEtcdBackupSchedule fleet/hourly has failed"
		missed   = "TalosBackupMissed: TalosEtcdBackupSchedule fleet/hourly does not begin its backups in time: "
		damaged  = "TalosBackupDamaged: TalosEtcdBackup fleet/hourly-blue-1 of cluster blue is not in its store as it was stored: "
		stuck    = "TalosBackupDeletionStuck: The data of TalosEtcdBackup fleet/hourly-blue-1 of cluster blue could not be deleted for an hour"
	)
	for name, tt := range map[string]struct{ series, fires []string }{
		"a store has not been ready for a while": {[]string{ofStore + `type="Ready", status="False"} 1x15`}, []string{notReady}},
		"two replicas of kube-state-metrics":     {[]string{ofStore + `type="Ready", status="False", pod="a"} 1x15`, ofStore + `type="Ready", status="False", pod="b"} 1x15`}, []string{notReady}},
		"for less":                               {[]string{ofStore + `type="Ready", status="False"} 1x14`}, nil},
		"it was ready in between":                {[]string{ofStore + `type="Ready", status="False"} 1x15 0 1x14`}, nil},
		"a store is ready":                       {[]string{ofStore + `type="Ready", status="True"} 1x60`, ofStore + `type="Ready", status="False"} 0x60`}, nil},
		"not all of it could be imported":        {[]string{ofStore + `type="Imported", status="False"} 1x60`}, nil},

		"the newest backup has failed":        {[]string{ofSchedule + `status="False", reason="BackupFailed"} 1x5`}, []string{failed}},
		"two replicas tell of it":             {[]string{ofSchedule + `status="False", reason="BackupFailed", pod="a"} 1x5`, ofSchedule + `status="False", reason="BackupFailed", pod="b"} 1x5`}, []string{failed}},
		"it has failed a moment ago":          {[]string{ofSchedule + `status="False", reason="BackupFailed"} 1x4`}, nil},
		"another one is complete now":         {[]string{ofSchedule + `status="False", reason="BackupFailed"} 1x30 stale`, ofSchedule + `status="True", reason="Ready"} _x31 1x30`}, nil},
		"a backup was missed":                 {[]string{ofSchedule + `status="False", reason="BackupMissed"} 1x5`}, []string{missed + "BackupMissed"}},
		"it is made up for":                   {[]string{ofSchedule + `status="False", reason="BackupMissed"} 1x4`}, nil},
		"a schedule cannot be understood":     {[]string{ofSchedule + `status="False", reason="ScheduleInvalid"} 1x5`}, []string{missed + "ScheduleInvalid"}},
		"a schedule that selects no clusters": {[]string{ofSchedule + `status="True", reason="NoClusterSelected"} 1x60`}, nil},

		"a backup is damaged":                       {[]string{ofBackup + `type="Verified", status="False", reason="Damaged"} 1`, ofBackup + `type="Ready", status="False", reason="Damaged"} 1`}, []string{damaged + "Damaged"}},
		"two replicas tell of the damage":           {[]string{ofBackup + `type="Ready", status="False", reason="Damaged", pod="a"} 1`, ofBackup + `type="Ready", status="False", reason="Damaged", pod="b"} 1`}, []string{damaged + "Damaged"}},
		"a backup is gone from its store":           {[]string{ofBackup + `type="Ready", status="False", reason="Lost"} 1`}, []string{damaged + "Lost"}},
		"a backup could not be read back yet":       {[]string{ofBackup + `type="Ready", status="Unknown", reason="StoreUnavailable"} 1x90`}, nil},
		"a backup that has failed is another thing": {[]string{ofBackup + `type="Ready", status="False", reason="Failed"} 1x90`}, nil},

		"data cannot be deleted":                {[]string{ofBackup + `type="Deleting", status="True", reason="DeletionFailed"} 1x60`}, []string{stuck}},
		"now and then it is tried":              {[]string{ofBackup + `type="Deleting", status="True", reason="DeletionFailed"} 1x30 stale`, ofBackup + `type="Deleting", status="True", reason="DeletingData"} _x31 1x29`}, []string{stuck}},
		"it could not be for less than an hour": {[]string{ofBackup + `type="Deleting", status="True", reason="DeletionFailed"} 1x59`}, nil},
		"it is locked":                          {[]string{ofBackup + `type="Deleting", status="True", reason="ObjectLocked"} 1x90`}, nil},
	} {
		t.Run(name, func(t *testing.T) { expectFiring(t, tt.series, tt.fires) })
	}
}

// TestBackupsThatAreTooOld: the schedule asks for a backup each hour, which may take an
// hour. What was at the epoch is too old from minute 121 on, and that is told after ten
// minutes more.
func TestBackupsThatAreTooOld(t *testing.T) {
	tooOld := func(cluster, seconds string) string {
		return "TalosBackupTooOld: Cluster fleet/" + cluster + " has had no backup of TalosEtcdBackupSchedule hourly for " + seconds
	}
	old := []string{selects + `1x131`, scheduled + `0x131`, asks + `3600x131`, suspends + `0x131`, created + `0x131`, completed + `0x131`}
	without := func(series ...string) []string {
		return slices.DeleteFunc(slices.Clone(old), func(of string) bool {
			return slices.ContainsFunc(series, func(name string) bool { return strings.HasPrefix(of, name) })
		})
	}
	replica := func(pod string) []string {
		var found []string
		for _, series := range old {
			found = append(found, strings.Replace(series, "{", `{pod="`+pod+`", `, 1))
		}
		return found
	}
	green := func(series string) string { return strings.ReplaceAll(series, "blue", "green") }
	for name, tt := range map[string]struct{ series, fires []string }{
		"the newest backup is too old":              {old, []string{tooOld("blue", "7860")}},
		"two replicas of kube-state-metrics":        {slices.Concat(replica("a"), replica("b")), []string{tooOld("blue", "7860")}},
		"for less than ten minutes":                 {[]string{selects + `1x130`, scheduled + `0x130`, asks + `3600x130`, suspends + `0x130`, created + `0x130`, completed + `0x130`}, nil},
		"there is a newer one":                      {append(without(completed), completed+`0x100 6000x30`), nil},
		"there is a newer one of another cluster":   {append(slices.Clone(old), green(selects)+`1x131`, green(created)+`0x131`, green(completed)+`6000x131`), []string{tooOld("blue", "7860")}},
		"there is none of another cluster":          {append(without(completed), completed+`6000x131`, green(selects)+`1x131`, green(created)+`0x131`), []string{tooOld("green", "7860")}},
		"there has never been one":                  {without(completed), []string{tooOld("blue", "7860")}},
		"nor is it known how old the cluster is":    {without(completed, created), []string{tooOld("blue", "7860")}},
		"the cluster is younger":                    {append(without(completed, created), created+`660x131`), nil},
		"the schedule is younger":                   {append(without(completed, scheduled), scheduled+`660x131`), nil},
		"the schedule is younger than the backup":   {append(without(scheduled), scheduled+`660x131`), nil},
		"less is asked for":                         {append(without(asks), asks+`86400x131`), nil},
		"nothing is asked for":                      {without(asks), nil},
		"the schedule is suspended":                 {append(without(suspends), suspends+`1x131`), nil},
		"the schedule was suspended until now":      {append(without(suspends), suspends+`1x122 0x8`), nil},
		"the schedule is not suspended any more":    {append(without(suspends), suspends+`1x60 0x70`), []string{tooOld("blue", "7860")}},
		"no cluster is selected":                    {without(selects, completed), nil},
		"a schedule of that name elsewhere is idle": {append(slices.Clone(old), strings.Replace(suspends, "fleet", "other", 1)+`1x131`), []string{tooOld("blue", "7860")}},
	} {
		t.Run(name, func(t *testing.T) { expectFiring(t, tt.series, tt.fires) })
	}
}
