package podhost

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestImages(t *testing.T) {
	g := NewWithT(t)
	h := &Host{images: map[string]Image{}}
	g.Expect(h.image("ghcr.io/siderolabs/talos:v1.13.9")).To(Equal(Image{Release: "v1.13.9"}))
	g.Expect(h.image("registry.example.com/talos:v1")).To(HaveField("Refusal", ContainSubstring("registry.example.com/talos:v1: not found")))
	h.SetImage("registry.example.com/talos:v1", Image{Release: "v1.13.5"})
	g.Expect(h.image("registry.example.com/talos:v1")).To(Equal(Image{Release: "v1.13.5"}))
}

// TestPullsAreSpacedOut: the kubelet has the runtime's words at each try, and quotes
// them between two.
func TestPullsAreSpacedOut(t *testing.T) {
	g, w := NewWithT(t), &worker{}
	refused := Image{Refusal: "no such host"}
	first := pull(w, "a", refused)
	g.Expect(reasonOf(first)).To(Equal("ErrImagePull"))
	g.Expect(first).To(MatchError("no such host"))
	second := pull(w, "a", refused)
	g.Expect(reasonOf(second)).To(Equal("ImagePullBackOff"))
	g.Expect(second).To(MatchError(`Back-off pulling image "a": ErrImagePull: no such host`))
	g.Expect(pull(w, "a", Image{})).To(Succeed())
}

func TestWhatTheProcessNeeds(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Container, map[string]string)
		fails  string
	}{
		"all is well":           {change: func(*corev1.Container, map[string]string) {}},
		"not privileged":        {change: func(c *corev1.Container, _ map[string]string) { c.SecurityContext.Privileged = nil }, fails: "not privileged"},
		"no platform":           {change: func(_ *corev1.Container, e map[string]string) { delete(e, "PLATFORM") }, fails: "no platform"},
		"a variable too long":   {change: func(_ *corev1.Container, e map[string]string) { e["X"] = strings.Repeat("x", maxEnvironment-2) }, fails: "argument list too long"},
		"as long as one may be": {change: func(_ *corev1.Container, e map[string]string) { e["X"] = strings.Repeat("x", maxEnvironment-3) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			container := &corev1.Container{SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}
			environment := map[string]string{"PLATFORM": "container"}
			test.change(container, environment)
			err := execute(container, environment)
			if test.fails == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.fails)))
		})
	}
}

// TestServicesLeadToPods that are ready, or to all that have an address.
func TestServicesLeadToPods(t *testing.T) {
	g := NewWithT(t)
	pods := []corev1.Pod{
		{Status: corev1.PodStatus{PodIP: "127.1.1.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}},
		{Status: corev1.PodStatus{PodIP: "127.1.1.2"}},
		{},
	}
	service, port := &corev1.Service{}, corev1.ServicePort{Port: 443, TargetPort: intstr.FromInt32(6443)}
	g.Expect(behind(service, port, pods)).To(Equal([]string{"127.1.1.1:6443"}))
	service.Spec.PublishNotReadyAddresses = true
	g.Expect(behind(service, corev1.ServicePort{Port: 2380}, pods)).To(Equal([]string{"127.1.1.1:2380", "127.1.1.2:2380"}))
}
