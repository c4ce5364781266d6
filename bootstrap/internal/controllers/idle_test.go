package controllers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// A reconcile without news writes nothing, comes back by itself only to renew a
// certificate, and asks the API server for nothing where there is all.
func TestNothingIsWrittenOrReadWithoutNews(t *testing.T) {
	for name, tc := range map[string]struct {
		edit func(*clusterv1.Cluster, *bootstrapv1.TalosConfig)
		// waiting reports whether there is no bootstrap data.
		waiting bool
	}{
		"a machine that has its configuration": {edit: func(*clusterv1.Cluster, *bootstrapv1.TalosConfig) {}},
		"a cluster without infrastructure": {func(c *clusterv1.Cluster, _ *bootstrapv1.TalosConfig) {
			c.Status.Initialization.InfrastructureProvisioned = nil
		}, true},
		"a cluster without endpoint": {func(c *clusterv1.Cluster, _ *bootstrapv1.TalosConfig) {
			c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		}, true},
		"a broken patch": {func(_ *clusterv1.Cluster, c *bootstrapv1.TalosConfig) {
			c.Spec.StrategicPatches = []string{"machine: {colour: red}"}
		}, true},
		"bootstrap data that is held back": {func(_ *clusterv1.Cluster, c *bootstrapv1.TalosConfig) {
			c.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: "not yet"}
		}, true},
		"a paused cluster": {func(c *clusterv1.Cluster, _ *bootstrapv1.TalosConfig) { c.Spec.Paused = ptr.To(true) }, true},
	} {
		for _, controlPlane := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", control plane", false: ", worker"}[controlPlane], func(t *testing.T) {
				cluster := newCluster()
				machine, config := newMachine(cpName, controlPlane)
				tc.edit(cluster, config)
				w := newWorld(t, cluster, machine, config, usersBundle())
				w.settle(cpName)
				w.get(config, cpName)
				before, writes := config.ResourceVersion, w.life.Effects()

				reads := 0
				live := interceptor.NewClient(w.life.Client(w.client), interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
						if _, isSecret := into.(*corev1.Secret); isSecret {
							reads++
						}
						return c.Get(ctx, key, into, opts...)
					},
				})
				r := &Reconciler{Client: live, APIReader: live, SecretCachingClient: w.client, Clock: w.clock, Recorder: events.NewFakeRecorder(10)}
				result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(config)})

				w.Expect(err).NotTo(HaveOccurred())
				w.Expect(w.life.Effects()).To(Equal(writes))
				w.get(config, cpName)
				w.Expect(config.ResourceVersion).To(Equal(before))
				if !tc.waiting {
					w.Expect(reads).To(BeZero())
				}
				if result.RequeueAfter != 0 {
					w.Expect(controlPlane).To(BeTrue())
					w.Expect(result.RequeueAfter).To(BeNumerically(">", 24*time.Hour))
				}
			})
		}
	}
}
