package kindstack_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/test/stack/kindstack"
)

// TestManagersThatWereStartedAgain: one that has ended is found; one whose first start failed
// has not ended.
func TestManagersThatWereStartedAgain(t *testing.T) {
	t.Parallel()
	ended := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason}}
	}
	for name, c := range map[string]struct {
		namespace string
		restarts  int32
		last      corev1.ContainerState
		found     string
	}{
		"never":                   {namespace: "capt-backup-system"},
		"after it has ended":      {namespace: "capt-backup-system", restarts: 1, last: ended("Error"), found: "started again 1 times"},
		"after a failed start":    {namespace: "capt-backup-system", restarts: 1, last: ended("StartError")},
		"after both":              {namespace: "capt-backup-system", restarts: 2, last: ended("StartError"), found: "started again 1 times"},
		"the manager of somebody": {namespace: "capi-system", restarts: 1, last: ended("Error")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			reader := fake.NewClientBuilder().WithObjects(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "manager"},
				Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
					{Name: "manager", RestartCount: c.restarts, LastTerminationState: c.last},
				}},
			}).Build()
			if err := kindstack.CheckManagers(t.Context(), reader); c.found == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(c.found)))
			}
		})
	}
}
