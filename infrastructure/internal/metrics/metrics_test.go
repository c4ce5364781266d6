package metrics

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func host(namespace, name string, state infrav1.HostState) infrav1.TalosHost {
	made := infrav1.TalosHost{}
	made.Namespace, made.Name, made.Status.State = namespace, name, state

	return made
}

func TestHostsAreCountedAndGoWithTheirObjects(t *testing.T) {
	g := NewWithT(t)
	hosts := []infrav1.TalosHost{
		host("a", "h1", infrav1.HostAvailable), host("a", "h2", infrav1.HostProvisioned), host("a", "h3", infrav1.HostProvisioned), host("b", "h1", ""),
	}
	answered := func(host *infrav1.TalosHost) (time.Time, bool) {
		return time.Unix(1000, 0), host.Name != "h3" && host.Namespace == "a"
	}
	registry := prometheus.NewRegistry()
	counts := NewCounts()
	counts.Claim("a", ClaimClaimed)
	counts.Claim("a", ClaimClaimed)
	counts.Claim("b", ClaimConflict)
	counts.Claim("without-hosts", ClaimClaimed)
	counts.Release("a", ReleaseWiped)
	counts.Release("b", ReleaseUnproven)
	g.Expect(NewHosts(func() []infrav1.TalosHost { return hosts }, answered, counts).Register(registry)).To(Succeed())

	const contact = `
# HELP capi_talos_host_last_contact_timestamp_seconds When the machine of a TalosHost has last answered, in seconds since the epoch.
# TYPE capi_talos_host_last_contact_timestamp_seconds gauge
capi_talos_host_last_contact_timestamp_seconds{host="h1",namespace="a"} 1000
`
	const ends = `
# HELP capi_talos_host_claims_total How many claims of TalosHosts this process has made, by how they ended.
# TYPE capi_talos_host_claims_total counter
capi_talos_host_claims_total{namespace="a",result="claimed"} 2
capi_talos_host_claims_total{namespace="a",result="conflict"} 0
capi_talos_host_claims_total{namespace="b",result="claimed"} 0
capi_talos_host_claims_total{namespace="b",result="conflict"} 1
# HELP capi_talos_host_releases_total How many releases of TalosHosts this process has seen end, by how they ended.
# TYPE capi_talos_host_releases_total counter
capi_talos_host_releases_total{namespace="a",result="deleted"} 0
capi_talos_host_releases_total{namespace="a",result="unconfigured"} 0
capi_talos_host_releases_total{namespace="a",result="unproven"} 0
capi_talos_host_releases_total{namespace="a",result="wiped"} 1
capi_talos_host_releases_total{namespace="b",result="deleted"} 0
capi_talos_host_releases_total{namespace="b",result="unconfigured"} 0
capi_talos_host_releases_total{namespace="b",result="unproven"} 1
capi_talos_host_releases_total{namespace="b",result="wiped"} 0
`
	const h2 = `capi_talos_host_last_contact_timestamp_seconds{host="h2",namespace="a"} 1000
`
	const states = `
# HELP capi_talos_hosts How many TalosHosts of a namespace are in a state.
# TYPE capi_talos_hosts gauge
capi_talos_hosts{namespace="a",state="Available"} 1
capi_talos_hosts{namespace="a",state="Claimed"} 0
capi_talos_hosts{namespace="a",state="Error"} 0
capi_talos_hosts{namespace="a",state="Provisioned"} 2
capi_talos_hosts{namespace="a",state="Provisioning"} 0
capi_talos_hosts{namespace="a",state="Releasing"} 0
capi_talos_hosts{namespace="a",state="Unknown"} 0
capi_talos_hosts{namespace="b",state="Available"} 0
capi_talos_hosts{namespace="b",state="Claimed"} 0
capi_talos_hosts{namespace="b",state="Error"} 0
capi_talos_hosts{namespace="b",state="Provisioned"} 0
capi_talos_hosts{namespace="b",state="Provisioning"} 0
capi_talos_hosts{namespace="b",state="Releasing"} 0
capi_talos_hosts{namespace="b",state="Unknown"} 1
`
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(contact+h2+ends+states))).To(Succeed())

	hosts = hosts[:1]
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(contact), "capi_talos_host_last_contact_timestamp_seconds")).To(Succeed())
	hosts = nil
	g.Expect(testutil.GatherAndCount(registry)).To(BeZero())
}

func TestTheNextManagerOfAProcessTakesOver(t *testing.T) {
	g, registry := NewWithT(t), prometheus.NewRegistry()
	known := func(*infrav1.TalosHost) (time.Time, bool) { return time.Time{}, false }
	list := func(hosts ...infrav1.TalosHost) func() []infrav1.TalosHost {
		return func() []infrav1.TalosHost { return hosts }
	}
	g.Expect(NewHosts(list(host("a", "h1", ""), host("b", "h1", "")), known, NewCounts()).Register(registry)).To(Succeed())
	g.Expect(NewHosts(list(host("a", "h1", "")), known, NewCounts()).Register(registry)).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry)).To(Equal(len(states) + len(claimResults) + len(releaseResults)))
}
