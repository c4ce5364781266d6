package podhost

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// Machine is what runs in the container of a Pod; nil when nothing does.
func (h *Host) Machine(key client.ObjectKey) *talossim.Machine {
	w := h.known(key)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine
}

// Created are the UIDs of all Pods of a name that a node has ever had.
func (h *Host) Created(key client.ObjectKey) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.created[key]...)
}

func (h *Host) known(key client.ObjectKey) *worker {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.workers[key]
}

// KillContainer kills the container of a Pod; the kubelet starts it again.
func (h *Host) KillContainer(key client.ObjectKey) error {
	const killed = 137
	return h.kill(key, corev1.ContainerStateTerminated{Reason: "Error", ExitCode: killed})
}

// OOMKill has the kernel kill the container of a Pod for its memory.
func (h *Host) OOMKill(key client.ObjectKey) error {
	const killed = 137
	return h.kill(key, corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: killed})
}

func (h *Host) kill(key client.ObjectKey, fate corev1.ContainerStateTerminated) error {
	w := h.known(key)
	if w == nil {
		return fmt.Errorf("killing the container of Pod %s: no node has it", key)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.machine == nil || !w.runs() {
		return fmt.Errorf("killing the container of Pod %s: it does not run", key)
	}
	w.fate = &fate
	w.machine.End()
	return nil
}

// LoseSandboxes takes the sandboxes of Pods away, all before the first is made
// again, as when their nodes restart: the containers start again on their
// volumes, under other addresses.
func (h *Host) LoseSandboxes(ctx context.Context, keys ...client.ObjectKey) error {
	var lost []*worker
	defer func() {
		for _, w := range lost {
			w.mu.Unlock()
		}
		for _, key := range keys {
			h.look(ctx, key)
		}
	}()
	for _, key := range keys {
		w := h.known(key)
		if w == nil {
			return fmt.Errorf("taking the sandbox of Pod %s: no node has it", key)
		}
		w.mu.Lock()
		lost = append(lost, w)
		if w.machine == nil || !w.runs() {
			return fmt.Errorf("taking the sandbox of Pod %s: it does not run", key)
		}
	}
	var ends sync.WaitGroup
	for _, w := range lost {
		ends.Go(func() { h.endSandbox(w) })
	}
	ends.Wait()
	return nil
}

// Evict has the kubelet of its node evict a Pod.
func (h *Host) Evict(ctx context.Context, key client.ObjectKey) error {
	w := h.known(key)
	if w == nil {
		return fmt.Errorf("evicting Pod %s: no node has it", key)
	}
	w.mu.Lock()
	w.evicted = "The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi, available: 1Gi. "
	w.mu.Unlock()
	h.look(ctx, key)
	return nil
}

// RemoveNode takes a node away for good, with all that runs on it.
func (h *Host) RemoveNode(ctx context.Context, name string) error {
	h.mu.Lock()
	h.gone[name] = true
	h.mu.Unlock()
	pods := &corev1.PodList{}
	if err := h.client.List(ctx, pods); err != nil {
		return fmt.Errorf("listing Pods: %w", err)
	}
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == name {
			h.forget(client.ObjectKeyFromObject(&pods.Items[i]))
		}
	}
	if err := h.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}
	return nil
}
