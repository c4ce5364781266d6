package alerts

import "testing"

// Beginnings of series of a restore.
const (
	readyOfRestore = `capi_talosetcdrestore_status_condition_reason{namespace="fleet", name="back", cluster_name="blue", type="Ready", `
	pausedRestore  = `capi_talosetcdrestore_status_condition{namespace="fleet", name="back", cluster_name="blue", type="Paused", status="True"} `
)

func TestRestoreAlerts(t *testing.T) {
	const (
		failed = "TalosRestoreFailed: TalosEtcdRestore fleet/back has not restored etcd of cluster fleet/blue: "
		long   = "TalosRestoreTakesLong: TalosEtcdRestore fleet/back has been restoring etcd of cluster fleet/blue for more than an hour"
	)
	for name, tt := range map[string]struct{ series, fires []string }{
		"a restore has failed":                       {[]string{readyOfRestore + `status="False", reason="Failed"} 1`}, []string{failed + "Failed"}},
		"two replicas of kube-state-metrics":         {[]string{readyOfRestore + `status="False", reason="Failed", pod="a"} 1`, readyOfRestore + `status="False", reason="Failed", pod="b"} 1`}, []string{failed + "Failed"}},
		"it failed long ago":                         {[]string{readyOfRestore + `status="False", reason="Failed"} 1x90`}, []string{failed + "Failed"}},
		"etcd has its quorum":                        {[]string{readyOfRestore + `status="False", reason="QuorumPresent"} 1`}, []string{failed + "QuorumPresent"}},
		"the backup is of another cluster":           {[]string{readyOfRestore + `status="False", reason="OtherCluster"} 1`}, []string{failed + "OtherCluster"}},
		"the nodes run an older etcd":                {[]string{readyOfRestore + `status="False", reason="EtcdTooOld"} 1`}, []string{failed + "EtcdTooOld"}},
		"machines of another provider":               {[]string{readyOfRestore + `status="False", reason="InfrastructureUnsupported"} 1`}, []string{failed + "InfrastructureUnsupported"}},
		"the backup is damaged":                      {[]string{readyOfRestore + `status="False", reason="Damaged"} 1`}, []string{failed + "Damaged"}},
		"only the check says so":                     {[]string{`capi_talosetcdrestore_status_condition_reason{namespace="fleet", name="back", cluster_name="blue", type="Checked", status="False", reason="Damaged"} 1x90`}, nil},
		"a restore is complete":                      {[]string{readyOfRestore + `status="True", reason="Ready"} 1x90`}, nil},
		"it takes an hour":                           {[]string{readyOfRestore + `status="False", reason="Wiping"} 1x60`}, []string{long}},
		"it takes less":                              {[]string{readyOfRestore + `status="False", reason="Wiping"} 1x59`}, nil},
		"it makes progress, and takes an hour":       {[]string{readyOfRestore + `status="Unknown", reason="Checking"} 1x10 stale`, readyOfRestore + `status="False", reason="Wiping"} _x11 1x20 stale`, readyOfRestore + `status="False", reason="WaitingForMembers"} _x32 1x28`}, []string{long}},
		"it waits for its backup":                    {[]string{readyOfRestore + `status="Unknown", reason="WaitingForBackup"} 1x60`}, []string{long}},
		"two replicas tell that it takes long":       {[]string{readyOfRestore + `status="False", reason="Wiping", pod="a"} 1x60`, readyOfRestore + `status="False", reason="Wiping", pod="b"} 1x60`}, []string{long}},
		"it is complete in the end":                  {[]string{readyOfRestore + `status="False", reason="Restarting"} 1x50 stale`, readyOfRestore + `status="True", reason="Ready"} _x51 1x60`}, nil},
		"it is paused":                               {[]string{readyOfRestore + `status="False", reason="Wiping"} 1x90`, pausedRestore + `1x90`}, nil},
		"it was paused until now":                    {[]string{readyOfRestore + `status="False", reason="Wiping"} 1x90`, pausedRestore + `1x60 0x30`}, nil},
		"it has failed after long, and is told once": {[]string{readyOfRestore + `status="False", reason="WaitingForEtcd"} 1x30 stale`, readyOfRestore + `status="False", reason="Failed"} _x31 1x60`}, []string{failed + "Failed"}},
	} {
		t.Run(name, func(t *testing.T) { expectFiring(t, tt.series, tt.fires) })
	}
}
