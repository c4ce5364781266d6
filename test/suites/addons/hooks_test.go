package addons

import (
	"context"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// hookJobs stands for what runs the hook Jobs of charts: it completes them at once, and
// notes their names. A kube-apiserver alone runs no Pods.
type hookJobs struct {
	live client.Client

	mu  sync.Mutex
	ran map[string][]string
}

func (h *hookJobs) setupWithManager(mgr ctrl.Manager) error {
	h.live = mgr.GetClient()

	return ctrl.NewControllerManagedBy(mgr).For(&batchv1.Job{}).Complete(reconcile.AsReconciler(h.live, h))
}

// Reconcile implements reconcile.ObjectReconciler.
func (h *hookJobs) Reconcile(ctx context.Context, job *batchv1.Job) (ctrl.Result, error) {
	if job.Annotations["helm.sh/hook"] == "" || job.Status.CompletionTime != nil {
		return ctrl.Result{}, nil
	}
	now := metav1.Now()
	job.Status = batchv1.JobStatus{StartTime: &now, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now},
	}}
	h.note(job)
	if err := h.live.Status().Update(ctx, job); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("completing Job %s: %w", job.Name, err)
	}

	return ctrl.Result{}, nil
}

// note notes a Job before it is complete: its hook may be waited for.
func (h *hookJobs) note(job *batchv1.Job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ran == nil {
		h.ran = map[string][]string{}
	}
	if !slices.Contains(h.ran[job.Namespace], job.Name) {
		h.ran[job.Namespace] = append(h.ran[job.Namespace], job.Name)
	}
}

// in returns the names of the Jobs that have run in a namespace.
func (h *hookJobs) in(namespace string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.ran[namespace])
}
