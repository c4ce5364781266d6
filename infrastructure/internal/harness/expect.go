package harness

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
)

// ExpectError reports whether a host is in state Error, and why.
func ExpectError(w *Environment, name, reason, message string) {
	w.T.Helper()
	g := NewWithT(w.T)
	host := w.Host(name)
	g.Expect(host.Status.State).To(Equal(infrav1.HostError), name)
	available := conditions.Get(host, infrav1.AvailableCondition)
	g.Expect(available.Reason).To(Equal(reason))
	g.Expect(available.Message).To(ContainSubstring(message))
	g.Expect(w.Recorded()).To(ContainElement(And(HavePrefix("Warning HostError "), ContainSubstring(message))))
}

// Recorded are the events so far.
func (w *Environment) Recorded() []string {
	for {
		select {
		case event := <-w.events.Events:
			w.readEvents = append(w.readEvents, strings.TrimSpace(event))
		default:
			return w.readEvents
		}
	}
}

// ExpectFree reports whether nothing of a claim is left on a host.
func ExpectFree(w *Environment, name string) {
	w.T.Helper()
	g := NewWithT(w.T)
	host := w.Host(name)
	g.Expect(host.Status.State).To(Equal(infrav1.HostAvailable))
	g.Expect(conditions.IsTrue(host, infrav1.AvailableCondition)).To(BeTrue())
	g.Expect(host.Spec.ConsumerRef).To(BeZero())
	g.Expect(host.Spec.Handover).To(BeZero())
	g.Expect(host.Spec.Release).To(BeZero())
	g.Expect(host.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
	g.Expect(w.Exists(&corev1.Secret{}, credentials.AdminName(name))).To(BeFalse())
}

// Left names what of ours is left in the namespace.
func (w *Environment) Left() []string {
	w.T.Helper()
	var names []string
	for _, host := range w.Hosts() {
		names = append(names, "TalosHost "+host.Name)
	}
	for _, machine := range w.Machines() {
		names = append(names, "TalosMachine "+machine.Name)
	}
	for _, cluster := range w.TalosClusters() {
		names = append(names, "TalosCluster "+cluster.Name)
	}
	secrets := &corev1.SecretList{}
	NewWithT(w.T).Expect(w.Client.List(w.T.Context(), secrets)).To(Succeed())
	for _, secret := range secrets.Items {
		names = append(names, "Secret "+secret.Name)
	}

	return names
}

// ExpectNotReady tells what a TalosCluster says of why it is not ready.
func (w *Environment) ExpectNotReady(reason string, words ...string) {
	w.T.Helper()
	ready := conditions.Get(w.TalosCluster(), infrav1.ReadyCondition)
	g := NewWithT(w.T)
	g.Expect(ready.Reason).To(Equal(reason), ready.Message)
	g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
	for _, word := range words {
		g.Expect(ready.Message).To(ContainSubstring(word))
	}
}

// ExpectReady expects that the TalosCluster is ready.
func (w *Environment) ExpectReady() {
	w.T.Helper()
	g := NewWithT(w.T)
	g.Expect(conditions.IsTrue(w.TalosCluster(), infrav1.ReadyCondition)).To(BeTrue(), conditions.GetMessage(w.TalosCluster(), infrav1.ReadyCondition))
	g.Expect(w.TalosCluster().Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

// ExpectRuns reports whether a machine runs in its Pod.
func ExpectRuns(w *Environment, name string) {
	w.T.Helper()
	g := NewWithT(w.T)
	machine := w.Machine(name)
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.Get(machine, infrav1.ReadyCondition)).To(And(HaveField("Message", BeEmpty()), HaveField("Status", metav1.ConditionTrue)))
	pod := Get(w, &corev1.Pod{}, name)
	g.Expect(machine.Spec.Pod.Progress).To(Equal(infrav1.PodRan))
	g.Expect(machine.Spec.Pod.UID).To(Equal(string(pod.UID)))
	g.Expect(machine.Status.Addresses).To(ContainElement(HaveField("Address", pod.Status.PodIP)))
	g.Expect(w.PodRuntime.Running()).To(ContainElement(name))
}

// Told is a condition of a TalosMachine.
func (w *Environment) Told(name, kind string) *metav1.Condition {
	w.T.Helper()

	return conditions.Get(w.Machine(name), kind)
}

// ExpectTold reports whether a condition is false, for that reason and with these words.
func (w *Environment) ExpectTold(name, kind, reason string, words ...string) {
	w.T.Helper()
	g := NewWithT(w.T)
	found := w.Told(name, kind)
	g.Expect(found.Reason).To(Equal(reason), found.Message)
	g.Expect(found.Status).NotTo(Equal(metav1.ConditionTrue))
	for _, word := range words {
		g.Expect(found.Message).To(ContainSubstring(word))
	}
	g.Expect(conditions.IsTrue(w.Machine(name), infrav1.ReadyCondition)).To(BeFalse())
}

// UserDataOf is the configuration in the Secret of a machine, as Talos reads it.
func (w *Environment) UserDataOf(name string) string {
	w.T.Helper()
	g := NewWithT(w.T)
	zipped, err := base64.StdEncoding.DecodeString(string(Get(w, &corev1.Secret{}, name+infrav1.UserDataSecretSuffix).Data[infrav1.UserDataKey]))
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := gzip.NewReader(bytes.NewReader(zipped))
	g.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(reader)
	g.Expect(err).NotTo(HaveOccurred())

	return string(text)
}

// LeftOf names what is left of a machine.
func (w *Environment) LeftOf(name string) []string {
	w.T.Helper()
	var left []string
	for _, kept := range []struct {
		object client.Object
		name   string
	}{
		{&corev1.Pod{}, name},
		{&corev1.PersistentVolumeClaim{}, name + infrav1.DataClaimSuffix},
		{&corev1.Secret{}, name + infrav1.UserDataSecretSuffix},
		{&corev1.Service{}, name + infrav1.EtcdServiceSuffix},
		{&infrav1.TalosMachine{}, name},
	} {
		if w.Exists(kept.object, kept.name) {
			left = append(left, fmt.Sprintf("%T", kept.object))
		}
	}

	return left
}

// Reprovisioning is the condition of that name of a TalosMachine.
func (w *Environment) Reprovisioning(name string) *metav1.Condition {
	w.T.Helper()

	return conditions.Get(w.Machine(name), infrav1.ReprovisioningCondition)
}

// ExpectReprovisioned reports whether nothing but another boot is left of it.
func ExpectReprovisioned(w *Environment, before *infrav1.TalosMachine, name, host string) {
	w.T.Helper()
	g := NewWithT(w.T)
	machine, found := w.Machine(name), w.Host(host)
	g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(machine.Spec).To(Equal(before.Spec))
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.IsTrue(machine, infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(conditions.Get(machine, infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.NotReprovisioningReason))
	g.Expect(found.Status.State).To(Equal(infrav1.HostProvisioned))
	g.Expect(found.Spec.ConsumerRef.ProviderID).To(Equal(before.Spec.ProviderID))
	g.Expect(found.Spec.Handover.ProviderID).To(Equal(before.Spec.ProviderID))
	g.Expect(found.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
	g.Expect(found.Spec.Release).To(BeZero())
	g.Expect(found.Spec.Reprovision).To(BeZero())
	g.Expect(found.Spec.Wiped).To(BeEmpty(), "it is not wiped any more")
	g.Expect(found.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
}
