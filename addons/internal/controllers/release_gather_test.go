package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
)

func TestEveryChangeIsRolledOut(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens"}, Data: map[string][]byte{"values.yaml": []byte("token: one")}}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more"}, Data: map[string]string{"v": "size: 1"}}
	b := newBed(t, secret, configMap, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Values = &apiextensionsv1.JSON{Raw: []byte(`{"replicas":1}`)}
		a.Spec.ValuesTemplate = "cluster: {{ .Cluster.metadata.name }}-{{ dig \"metadata\" \"annotations\" \"tier\" \"none\" .Cluster }}"
		a.Spec.ValuesFrom = []addonv1.ValuesReference{
			{Kind: addonv1.SecretValues, Name: "tokens"}, {Kind: addonv1.ConfigMapValues, Name: "more", Key: "v"}, {Kind: addonv1.SecretValues, Name: "none", Presence: addonv1.PresenceOptional},
		}
	}))
	b.settle()
	revision := 1
	for name, change := range map[string]func(){
		"a value": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Values.Raw = []byte(`{"replicas":2}`) })
		},
		"a Secret":    func() { edit(b, secret, func(s *corev1.Secret) { s.Data["values.yaml"] = []byte("token: two") }) },
		"a ConfigMap": func() { edit(b, configMap, func(c *corev1.ConfigMap) { c.Data["v"] = "size: 2" }) },
		"what was optional": func() {
			b.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}, Data: map[string][]byte{"values.yaml": []byte("x: y")}})
		},
		"the Cluster": func() {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Annotations = map[string]string{"tier": "big"} })
		},
		"an option": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Release.HistoryLimit = ptr.To(int32(7)) })
		},
		"the version": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
		},
		"a version of the range": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "" })
			b.shelf.versions["demo"] = "3.0.0"
			b.clock.Step(time.Hour)
		},
	} {
		change()
		b.settle()
		revision++
		b.Expect(b.deployed("demo", "blue")).To(HavePrefix(fmt.Sprint(revision, " ")), name)
		b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"), name)
	}
	b.clusters.of("blue").Calls()
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) {
		a.Labels, a.Spec.Drift.Mode, a.Spec.Failure.Retries = on, addonv1.DriftIgnore, ptr.To(int32(9))
	})
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty(), "how to go on when something fails is no part of the release")
}

func TestValuesAreSecret(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens"}, Data: map[string][]byte{"values.yaml": []byte("token: hunter2")}}
	b := newBed(t, secret, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "tokens"}}
	}))
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: errors.New(`Invalid value: "hunter2"`), Midway: true})
	b.settle()
	failed := b.release("demo", "blue")
	b.Expect(failed.Status.Failure.Message).To(Equal(`Invalid value: "***"`))
	b.Expect(fmt.Sprintf("%+v", failed)).NotTo(ContainSubstring("hunter2"))
	for len(b.events.Events) > 0 {
		b.Expect(<-b.events.Events).NotTo(ContainSubstring("hunter2"))
	}
	edit(b, secret, func(s *corev1.Secret) { s.Data["values.yaml"] = []byte("- hunter3") })
	b.settle()
	found := conditions.Get(b.release("demo", "blue"), addonv1.ReleasedCondition)
	b.Expect(found.Reason).To(Equal(addonv1.ValuesInvalidReason))
	b.Expect(found.Message).To(Equal("valuesFrom[0]: Secret tokens, key values.yaml: is no YAML with values by name"))
}

func TestValuesThatCannotBeMadeAreToldWithTheirPlace(t *testing.T) {
	for message, change := range map[string]func(*addonv1.TalosClusterAddon){
		"valuesFrom[0]: Secret none, key values.yaml: it is missing": func(a *addonv1.TalosClusterAddon) {
			a.Spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "none"}}
		},
		`valuesTemplate: template: valuesTemplate:2:14: executing "valuesTemplate" at <.Cluster.nothing.at>: map has no entry for key "nothing"`: func(a *addonv1.TalosClusterAddon) {
			a.Spec.ValuesTemplate = "a: b\nc: {{ .Cluster.nothing.at }}"
		},
	} {
		b := newBed(t, clusterOf("blue", on), addonOf("demo", change))
		b.settle()
		found := conditions.Get(b.release("demo", "blue"), addonv1.ReleasedCondition)
		b.Expect(found.Reason).To(Equal(addonv1.ValuesInvalidReason))
		b.Expect(found.Message).To(Equal(message))
		b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	}
}

func TestANamespaceThatOthersMakeIsWaitedFor(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Release.NamespacePolicy, a.Spec.Failure.Retries = addonv1.NamespaceRequire, ptr.To(int32(0))
	}))
	b.clusters.of("blue").namespaceMissing = true
	for range 3 {
		b.settle()
		b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForNamespace"))
		b.clock.Step(unreachableInterval)
	}
	for len(b.events.Events) > 0 {
		b.Expect(<-b.events.Events).NotTo(ContainSubstring("Install"), "it is no failure")
	}
	b.clusters.of("blue").namespaceMissing = false
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
}

func TestAddonsWaitForOthers(t *testing.T) {
	b := newBed(t, clusterOf("blue", on),
		addonOf("app", func(a *addonv1.TalosClusterAddon) { a.Spec.DependsOn = []addonv1.AddonReference{{Name: "base"}} }),
		addonOf("other"),
		addonOf("cni", func(a *addonv1.TalosClusterAddon) {
			a.Spec.Phase, a.Spec.Source.Repository.Chart = addonv1.PhaseNetwork, "cni"
		}),
	)
	b.clusters.of("blue").waiting = "none of the 1 nodes is ready"
	b.settle()
	b.Expect(b.deployed("cni", "blue")).To(Equal("1 1.0.0"), "it does not wait for nodes")
	b.Expect(reason(b.release("cni", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("False WaitingForResources"))
	b.Expect(reason(b.release("other", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForNetwork"))
	b.Expect(reason(b.release("app", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForDependencies"))
	b.Expect(b.deployed("other", "blue")).To(BeEmpty())

	b.clusters.of("blue").waiting = ""
	b.clock.Step(readyInterval)
	b.settle()
	b.Expect(reason(b.release("cni", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.deployed("other", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.deployed("app", "blue")).To(BeEmpty(), "what it depends on is not there")

	b.create(addonOf("base"))
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("1 1.0.0"))

	// A change of both goes in order.
	b.clusters.of("blue").Fail(helmfake.Upgrade, helmfake.Fault{Err: errors.New("it is broken"), Midway: true})
	edit(b, b.addon("base"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	edit(b, b.addon("app"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("1 1.0.0"))
	b.clock.Step(time.Minute)
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("2 2.0.0"))
}

func TestACircleOfDependenciesIsTold(t *testing.T) {
	on := func(names ...string) func(*addonv1.TalosClusterAddon) {
		return func(a *addonv1.TalosClusterAddon) {
			for _, name := range names {
				a.Spec.DependsOn = append(a.Spec.DependsOn, addonv1.AddonReference{Name: name})
			}
		}
	}
	b := newBed(t, clusterOf("blue", map[string]string{"addons": "on"}), addonOf("a", on("x", "b")), addonOf("b", on("c")), addonOf("c", on("a")), addonOf("x"))
	b.settle()
	found := conditions.Get(b.release("a", "blue"), addonv1.ReleasedCondition)
	b.Expect(found.Reason).To(Equal(addonv1.DependencyCycleReason))
	b.Expect(found.Message).To(Equal("dependsOn goes round in a circle: a -> b -> c -> a"))
	b.Expect(reason(b.release("x", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}

func TestAClusterThatIsNotThereYetIsWaitedFor(t *testing.T) {
	young := clusterOf("blue", on)
	young.Status.Initialization.ControlPlaneInitialized = nil
	b := newBed(t, young, addonOf("demo"))
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("False WaitingForControlPlane"))
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	b.clusters.setReachable("blue", false)
	young = clusterOf("blue", nil)
	b.Expect(b.client.Get(t.Context(), client.ObjectKeyFromObject(young), young)).To(Succeed())
	young.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	b.Expect(b.client.Status().Update(t.Context(), young)).To(Succeed())
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown ClusterUnreachable"))
	b.clusters.setReachable("blue", true)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}
