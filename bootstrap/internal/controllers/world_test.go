package controllers

import (
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v4"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/support/builders"
	"github.com/capi-talos/capi-talos/test/support/mortal"
)

const (
	namespace   = "fleet"
	clusterName = "one"
	cpName      = "one-cp-abcde"
	workerName  = "one-md-fghij"
)

var (
	testTime = time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)

	// sharedBundle spares the tests the making of keys.
	sharedBundle = sync.OnceValue(func() *secrets.Bundle {
		bundle, err := secrets.NewBundle(testTime, "v1.13", nil)
		if err != nil {
			panic(err)
		}
		return bundle
	})
)

// world is a management cluster in which the test plays everybody else.
type world struct {
	*WithT
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder

	// life is that of the managers.
	life mortal.Life
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(testTime), events: events.NewFakeRecorder(1000)}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme,
	} {
		w.Expect(add(scheme)).To(Succeed())
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&bootstrapv1.TalosConfig{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).Build()
	return w
}

func (w *world) reconcile(name string) (ctrl.Result, error) {
	c := w.life.Client(w.client)
	r := &Reconciler{
		Client: c, APIReader: c, SecretCachingClient: c,
		Clock: w.clock, Recorder: w.events,
	}
	return r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}})
}

// settle reconciles until nothing is written any more.
func (w *world) settle(names ...string) {
	w.t.Helper()
	const reconciles = 10
	for range reconciles {
		before := w.life.Effects()
		for _, name := range names {
			_, err := w.reconcile(name)
			w.Expect(err).NotTo(HaveOccurred())
		}
		if w.life.Effects() == before {
			return
		}
	}
	w.t.Fatalf("still writing after %d reconciles", reconciles)
}

// warnings are the events of type Warning since the last call.
func (w *world) warnings() []string {
	var found []string
	for {
		select {
		case event := <-w.events.Events:
			if strings.HasPrefix(event, corev1.EventTypeWarning) {
				found = append(found, event)
			}
		default:
			return found
		}
	}
}

func (w *world) get(object client.Object, name string) {
	w.t.Helper()
	w.Expect(w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)).To(Succeed())
}

func (w *world) secret(name string) *corev1.Secret {
	w.t.Helper()
	found := &corev1.Secret{}
	w.get(found, name)
	return found
}

func (w *world) expectNoSecret(name string) {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &corev1.Secret{})
	w.Expect(client.IgnoreNotFound(err)).To(Succeed())
	w.Expect(err).To(HaveOccurred())
}

// expect compares a condition of a config.
func (w *world) expect(name, conditionType string, status metav1.ConditionStatus, reason, message string) {
	w.t.Helper()
	config := &bootstrapv1.TalosConfig{}
	w.get(config, name)
	found := conditions.Get(config, conditionType)
	w.Expect(found).NotTo(BeNil(), conditionType)
	w.Expect(string(found.Status) + " " + found.Reason + " " + found.Message).To(And(HavePrefix(string(status)+" "+reason), ContainSubstring(message)))
}

func newCluster() *clusterv1.Cluster {
	cluster := builders.Cluster(namespace, clusterName)
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
	// One that is not ours leaves most to the bootstrap provider.
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "controlplane.cluster.x-k8s.io", Kind: "OtherControlPlane", Name: "one-cp"}
	cluster.Spec.ClusterNetwork = clusterv1.ClusterNetwork{
		Pods:          clusterv1.NetworkRanges{CIDRBlocks: []string{"10.50.0.0/16"}},
		Services:      clusterv1.NetworkRanges{CIDRBlocks: []string{"10.60.0.0/16"}},
		ServiceDomain: "test.local",
		APIServerPort: 7443,
	}

	return cluster
}

// newMachine is a Machine and its config, which have the same name.
func newMachine(name string, controlPlane bool) (*clusterv1.Machine, *bootstrapv1.TalosConfig) {
	cluster := newCluster()
	machine := builders.Machine(cluster, name)
	machine.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: name}
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TalosMachine", Name: "infra-" + name}
	generate := bootstrapv1.GenerateTypeWorker
	if controlPlane {
		machine.Labels[clusterv1.MachineControlPlaneLabel] = ""
		generate = bootstrapv1.GenerateTypeControlPlane
	}

	return machine, &bootstrapv1.TalosConfig{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "c", Labels: builders.Labels(cluster), OwnerReferences: builders.OwnedByMachine(machine),
		},
		Spec: bootstrapv1.TalosConfigSpec{GenerateType: generate, TalosVersion: "v1.13"},
	}
}

// usersBundle is the Secret of a user who brings key material.
func usersBundle() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secrets.BundleName(clusterName)},
		Data:       map[string][]byte{secrets.BundleKey: sharedBundle().YAML()},
	}
}

func loaded(w *world, name string) config.Provider {
	w.t.Helper()
	provider, err := configloader.NewFromBytes(w.secret(name).Data["value"])
	w.Expect(err).NotTo(HaveOccurred())
	return provider
}

func rawJSON(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

// encoded is a secrets bundle as it is stored.
func encoded(g *WithT, bundle any) []byte {
	raw, err := yaml.Marshal(bundle)
	g.Expect(err).NotTo(HaveOccurred())
	return raw
}
