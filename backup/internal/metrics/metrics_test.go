package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	g, registry := NewWithT(t), prometheus.NewPedanticRegistry()
	metrics := New(func() (int, int) { return 3, 5 })
	g.Expect(metrics.Register(registry)).To(Succeed())
	metrics.Ended(StepBackUp, time.Minute, nil)
	metrics.Ended(StepBackUp, time.Second, errors.New("gone"))
	metrics.Stored(1000, 300)
	metrics.Checked("ClockSkew")
	metrics.Pruned()
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP capi_talos_backup_attempts_total Attempts to make, verify, delete, check and send backups, by step and result.
# TYPE capi_talos_backup_attempts_total counter
capi_talos_backup_attempts_total{result="failed",step="BackUp"} 1
capi_talos_backup_attempts_total{result="failed",step="CheckRestore"} 0
capi_talos_backup_attempts_total{result="failed",step="Delete"} 0
capi_talos_backup_attempts_total{result="failed",step="Send"} 0
capi_talos_backup_attempts_total{result="failed",step="Verify"} 0
capi_talos_backup_attempts_total{result="succeeded",step="BackUp"} 1
capi_talos_backup_attempts_total{result="succeeded",step="CheckRestore"} 0
capi_talos_backup_attempts_total{result="succeeded",step="Delete"} 0
capi_talos_backup_attempts_total{result="succeeded",step="Send"} 0
capi_talos_backup_attempts_total{result="succeeded",step="Verify"} 0
# HELP capi_talos_backup_jobs Jobs, each of which makes, verifies or deletes a backup: those that run, and backups that wait for one.
# TYPE capi_talos_backup_jobs gauge
capi_talos_backup_jobs{state="running"} 3
capi_talos_backup_jobs{state="waiting"} 5
# HELP capi_talos_backup_plain_bytes_total Bytes of the snapshots that were stored, as etcd has given them.
# TYPE capi_talos_backup_plain_bytes_total counter
capi_talos_backup_plain_bytes_total 1000
# HELP capi_talos_backup_pruned_total Backups that schedules have deleted because their retention does not keep them.
# TYPE capi_talos_backup_pruned_total counter
capi_talos_backup_pruned_total 1
# HELP capi_talos_backup_store_checks_total Checks of stores, by the reason of condition Ready that they have led to.
# TYPE capi_talos_backup_store_checks_total counter
capi_talos_backup_store_checks_total{result="ClockSkew"} 1
capi_talos_backup_store_checks_total{result="Ready"} 0
# HELP capi_talos_backup_stored_bytes_total Bytes of the snapshots that were stored, as the stores have them.
# TYPE capi_talos_backup_stored_bytes_total counter
capi_talos_backup_stored_bytes_total 300
`), "capi_talos_backup_attempts_total", "capi_talos_backup_jobs", "capi_talos_backup_plain_bytes_total", "capi_talos_backup_pruned_total",
		"capi_talos_backup_store_checks_total", "capi_talos_backup_stored_bytes_total")).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry, "capi_talos_backup_attempt_duration_seconds")).To(Equal(2))
}
