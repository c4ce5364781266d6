package provider_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
)

func TestOptionsNameWhatIsMissing(t *testing.T) {
	const dialer = "Dialer"
	secrets := fake.NewClientBuilder().Build()
	for name, c := range map[string]struct {
		options  provider.Options
		requires []provider.Requirement
		missing  string
	}{
		"all need the client for Secrets":   {missing: "SecretCachingClient"},
		"nothing else is needed by all":     {options: provider.Options{SecretCachingClient: secrets}},
		"what the provider says":            {options: provider.Options{SecretCachingClient: secrets}, requires: []provider.Requirement{{Name: dialer}}, missing: dialer},
		"nothing that the provider has":     {options: provider.Options{SecretCachingClient: secrets}, requires: []provider.Requirement{{Name: dialer, Given: true}}},
		"all that is missing is named once": {requires: []provider.Requirement{{Name: dialer}, {Name: "Other"}}, missing: "SecretCachingClient, Dialer, Other"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := NewWithT(t), c.options.Complete(c.requires...)
			if c.missing == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError("required by the provider and not set: " + c.missing))
		})
	}
}

func TestTheClusterCacheIsRequiredByThoseWhoSaySo(t *testing.T) {
	g, secrets := NewWithT(t), fake.NewClientBuilder().Build()
	without := provider.Options{SecretCachingClient: secrets}
	g.Expect(without.Complete(without.NeedsClusterCache())).To(MatchError(ContainSubstring("ClusterCache")))
	with := provider.Options{SecretCachingClient: secrets, ClusterCache: struct{ clustercache.ClusterCache }{}}
	g.Expect(with.Complete(with.NeedsClusterCache())).To(Succeed())
}

func TestOptionsHaveDefaults(t *testing.T) {
	g, secrets := NewWithT(t), client.Client(fake.NewClientBuilder().Build())
	options := provider.Options{SecretCachingClient: secrets}
	g.Expect(options.Complete()).To(Succeed())
	g.Expect(options).To(Equal(provider.Options{
		SecretCachingClient: secrets, Concurrency: 10, Clock: clock.RealClock{}, Random: requeue.SharedRandom{}, Metrics: ctrlmetrics.Registry,
	}))
	g.Expect(options.Controller().MaxConcurrentReconciles).To(Equal(10))

	given := provider.Options{
		SecretCachingClient: secrets, Concurrency: 3, Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0)),
		Random: &requeue.SharedRandom{}, Metrics: prometheus.NewRegistry(),
	}
	completed := given
	g.Expect(completed.Complete()).To(Succeed())
	g.Expect(completed).To(Equal(given), "what is given stays")
}
