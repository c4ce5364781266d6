package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// holdFor writes the record of a restore on the control plane; nil takes it away.
func (w *world) holdFor(record *controlplanev1.RestoreRecord) {
	w.t.Helper()
	value, err := json.Marshal(record)
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred())
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		delete(controlPlane.Annotations, controlplanev1.RestoreInProgressAnnotation)
		if record != nil {
			metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, controlplanev1.RestoreInProgressAnnotation, string(value))
		}
	})
}

// recoveries counts the bootstraps from a snapshot.
func (w *world) recoveries() (count int) {
	for _, machine := range w.talos {
		count += machine.Recoveries()
	}

	return count
}

// TestEtcdIsRestoredFromWhatANodeWasSent: once, also when the manager dies at any of its
// writes, and by the record of a bootstrap.
func TestEtcdIsRestoredFromWhatANodeWasSent(t *testing.T) {
	killed := true
	for at := 0; killed; at++ {
		g, w := NewWithT(t), newWorld(t)
		w.settle(w.manager())
		name := w.machines()[0].Name
		w.wipeEtcd()
		w.prober.set(health.APIServerSilent)
		w.holdFor(&controlplanev1.RestoreRecord{Restore: "back"})
		w.settle(w.manager())
		g.Expect(w.bootstraps()).To(Equal(1), "no node was sent anything")

		w.holdFor(&controlplanev1.RestoreRecord{Restore: "back", ID: "id-1", Machine: name})
		w.life.DieAt(at)
		r := w.manager()
		for pass := 0; pass < 12 && !w.life.IsOver(); pass++ {
			if err := w.reconcile(r); !w.life.IsOver() {
				g.Expect(err).NotTo(HaveOccurred())
				w.others()
			}
		}
		killed = at == 0 || w.life.IsOver()
		w.life.Restart()
		w.settle(w.manager())
		g.Expect(w.recoveries()).To(Equal(1), "killed at write %d", at)
		g.Expect(w.bootstraps()).To(Equal(2), "killed at write %d", at)
		g.Expect(bootstrapIntent(w.controlPlane())).To(HaveValue(And(
			HaveField("Name", name), HaveField("Restore", "id-1"), HaveField("Bootstrapped", true), HaveField("Initialized", true),
		)), "killed at write %d", at)

		w.holdFor(nil)
		w.settle(w.manager())
		g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
		g.Expect(w.bootstraps()).To(Equal(2))
		g.Expect(at).To(BeNumerically("<", 100))
	}
}

// TestARestoreForgetsNothing: that the cluster was in use is in the record from the beginning,
// so that a lost status does not let anybody begin an empty etcd.
func TestARestoreForgetsNothing(t *testing.T) {
	g, w := NewWithT(t), newWorld(t)
	w.settle(w.manager())
	name := w.machines()[0].Name
	w.wipeEtcd()
	w.prober.set(health.APIServerSilent)
	w.talos[name].OnRecover = func(*talosfake.Machine) error { return errors.New("no luck") }
	w.holdFor(&controlplanev1.RestoreRecord{Restore: "back", ID: "id-1", Machine: name})
	for range 3 {
		_ = w.reconcile(w.manager())
	}
	g.Expect(bootstrapIntent(w.controlPlane())).To(HaveValue(And(HaveField("Restore", "id-1"), HaveField("Bootstrapped", false), HaveField("Initialized", true))))
	asked := w.bootstraps()

	w.loseStatus()
	w.holdFor(nil)
	w.settle(w.manager())
	g.Expect(w.bootstraps()).To(Equal(asked))
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.InitializedCondition)).To(Equal(controlplanev1.EtcdDataLostReason))
}

// heldReader reads control planes that are held by now.
type heldReader struct {
	client.Reader

	record string
}

func (r heldReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, into, options...)
	if controlPlane, ok := into.(*controlplanev1.TalosControlPlane); ok && err == nil {
		metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, controlplanev1.RestoreInProgressAnnotation, r.record)
	}

	return err
}

// TestAHoldThatTheCacheLacks: nothing is bootstrapped by what was before it.
func TestAHoldThatTheCacheLacks(t *testing.T) {
	g, w := NewWithT(t), newWorld(t)
	w.settle(w.manager())
	w.wipeEtcd()
	w.prober.set(health.APIServerSilent)
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, controlplanev1.BootstrapOverrideAnnotation, w.machines()[0].Name)
	})
	r := w.manager()
	r.APIReader = heldReader{Reader: r.APIReader, record: `{"restore":"back"}`}
	for range 5 {
		_ = w.reconcile(r)
	}
	g.Expect(w.bootstraps()).To(Equal(1))
	w.settle(w.manager())
	g.Expect(w.bootstraps()).To(Equal(2), "it is the hold that has kept it")
}
