package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/source"
)

func TestSourcesThatHaveNoChart(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.shelf.err = &source.Error{Reason: addonv1.SourceUnreachableReason, Message: "no connection"}
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("False SourceUnreachable"))
	b.Expect(b.addon("demo").Status.Chart.Version).To(Equal("1.0.0"), "what is known stays")
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "9.x" })
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForChart"))
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"), "nothing else is rolled out")
	b.shelf.err = nil
	b.clock.Step(time.Minute)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 9.x"))
}

// TestWhySourcesHaveNoChartIsToldThoughItWasNotWritten: somebody else was faster, and the source is
// not asked again before its time.
func TestWhySourcesHaveNoChartIsToldThoughItWasNotWritten(t *testing.T) {
	b := newBed(t, addonOf("demo"))
	b.shelf.err = &source.Error{Reason: addonv1.SourceUnreachableReason, Message: "no connection"}
	b.shelf.whileAsked = func() {
		edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Labels = on })
	}
	_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("none"))
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(1))
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("False SourceUnreachable"))
	b.Expect(message(b.addon("demo"), addonv1.AddonReadyCondition)).To(Equal("no connection"))
}

// TestASlowSourceHoldsUpNoRelease: releases are made and removed before it is asked.
func TestASlowSourceHoldsUpNoRelease(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil })
	b.create(clusterOf("red", on))
	b.shelf.whileAsked = func() {
		b.Expect(b.release("demo", "red")).NotTo(BeNil())
		b.Expect(b.release("demo", "blue").DeletionTimestamp).NotTo(BeNil())
	}
	b.clock.Step(time.Hour)
	_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.shelf.asked).To(Equal(2))
}

// TestAServerOfChartsThatIsGoneIsNoFailureOfTheRelease: it is waited for, however long.
func TestAServerOfChartsThatIsGoneIsNoFailureOfTheRelease(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.shelf.noArchive = &source.Error{Reason: addonv1.SourceUnreachableReason, Message: "no connection"}
	for range 8 {
		b.settle()
		b.clock.Step(time.Hour)
	}
	found := b.release("demo", "blue")
	b.Expect(found.Status.Failure).To(BeZero())
	b.Expect(reason(found, addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForChart"))
	b.Expect(conditions.GetMessage(found, addonv1.ReleasedCondition)).To(ContainSubstring("no connection"))
	b.shelf.noArchive = nil
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}

func TestASourceIsAskedOnceAndNotForEachCluster(t *testing.T) {
	var objects []client.Object
	for i := range 8 {
		objects = append(objects, clusterOf(fmt.Sprint("c", i), on))
	}
	b := newBed(t, append(objects, addonOf("demo"))...)
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(1))
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(2))
}

func TestSecretsOfSources(t *testing.T) {
	opaque := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"}, Type: corev1.SecretTypeOpaque}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.CredentialsSecretName = "login" }))
	b.settle()
	b.Expect(conditions.GetMessage(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("there is no Secret login"))
	b.create(opaque)
	b.settle()
	b.Expect(conditions.GetMessage(b.addon("demo"), addonv1.ChartAvailableCondition)).To(ContainSubstring("needs one of type kubernetes.io/basic-auth"))
	edit(b, opaque, func(s *corev1.Secret) { s.Type = corev1.SecretTypeBasicAuth })
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.AddonReadyCondition)).To(Equal("True Ready"))

	asked := b.shelf.asked
	b.clusters.of("blue").Calls()
	edit(b, opaque, func(s *corev1.Secret) { s.Data = map[string][]byte{"password": []byte("new")} })
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(asked+1), "new credentials are used at once")
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty(), "and change no release")
}

func TestAChartOfAConfigMap(t *testing.T) {
	packed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chart"}, BinaryData: map[string][]byte{"chart.tgz": []byte("1.0.0")}}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Source = addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: "chart"}}
	}))
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("False SourceNotFound"))
	b.create(packed)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	edit(b, packed, func(c *corev1.ConfigMap) { c.BinaryData["chart.tgz"] = []byte("2.0.0") })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 2.0.0"))
}
