package container

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// recorded says what the record of a machine tells.
func recorded(progress infrav1.PodProgress, uid string) func(*podFacts) {
	return func(l *podFacts) { l.machine.Spec.Pod = infrav1.TalosMachinePod{Progress: progress, UID: uid} }
}

// there gives the machine a Pod.
func there(changes ...func(*corev1.Pod)) func(*podFacts) {
	return func(l *podFacts) {
		l.pod = (podBuilder{machine: l.machine, cluster: "demo"}).pod()
		l.pod.UID, l.pod.Spec.NodeName, l.pod.Status.Phase = "first", "node-1", corev1.PodRunning
		l.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		for _, change := range changes {
			change(l.pod)
		}
	}
}

func onVolume(l *podFacts) { withVolume(&podBuilder{machine: l.machine}) }

func deleted(p *corev1.Pod) { now := metav1.Unix(1, 0); p.DeletionTimestamp = &now }

func failed(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }

func succeeded(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func unscheduled(p *corev1.Pod) { p.Spec.NodeName, p.Status.ContainerStatuses = "", nil }

func unstarted(p *corev1.Pod) { p.Status.ContainerStatuses = nil }

func ended(p *corev1.Pod) {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
}

func foreign(p *corev1.Pod) { p.OwnerReferences = nil }

func another(p *corev1.Pod) { p.UID = "second" }

func ofAnotherMachine(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" }

func onLostNode(l *podFacts) { l.nodeGone = true }

func withoutData(l *podFacts) { l.dataGone = true }

// TestLife has every case of design D11.
func TestLife(t *testing.T) {
	creating, created, ran := recorded(infrav1.PodCreating, ""), recorded(infrav1.PodCreated, "first"), recorded(infrav1.PodRan, "first")
	lost, wiping := recorded(infrav1.PodLost, "first"), recorded(infrav1.PodReprovisioning, "first")
	for sentence, tt := range map[string]struct {
		facts []func(*podFacts)
		next  step
	}{
		"a machine that has had no Pod gets one":                                             {nil, stepCreate},
		"one that was about to get a Pod gets it":                                            {[]func(*podFacts){creating}, stepCreate},
		"one with a volume too":                                                              {[]func(*podFacts){onVolume, creating}, stepCreate},
		"a Pod of which nothing is recorded is recorded":                                     {[]func(*podFacts){creating, there()}, stepBind},
		"a Pod of which nothing is recorded is recorded even if it goes":                     {[]func(*podFacts){creating, there(deleted)}, stepBind},
		"a Pod that runs is followed":                                                        {[]func(*podFacts){ran, there()}, stepFollow},
		"a Pod that has no node yet is followed":                                             {[]func(*podFacts){created, there(unscheduled)}, stepFollow},
		"a Pod whose container has ended is followed, for it starts again":                   {[]func(*podFacts){ran, there(ended)}, stepFollow},
		"a Pod on a node that is gone is followed until somebody deletes it":                 {[]func(*podFacts){ran, there(), onLostNode}, stepFollow},
		"with its Pod a machine without a volume is lost":                                    {[]func(*podFacts){ran}, stepLose},
		"also before it ran":                                                                 {[]func(*podFacts){created}, stepLose},
		"a machine without a volume is lost when its Pod is being deleted":                   {[]func(*podFacts){ran, there(deleted)}, stepLose},
		"a machine without a volume is lost when its Pod was evicted":                        {[]func(*podFacts){ran, there(failed)}, stepLose},
		"a machine without a volume is lost when its Pod has succeeded":                      {[]func(*podFacts){ran, there(succeeded)}, stepLose},
		"a machine without a volume is lost when another Pod of it is there":                 {[]func(*podFacts){ran, there(another)}, stepLose},
		"a machine without a volume is lost when somebody else's Pod is there":               {[]func(*podFacts){ran, there(foreign)}, stepLose},
		"what is lost stays lost":                                                            {[]func(*podFacts){lost}, stepLost},
		"what is lost lets its Pod go":                                                       {[]func(*podFacts){lost, there(deleted, ended)}, stepLost},
		"what is lost stays lost whatever is there":                                          {[]func(*podFacts){lost, there(another)}, stepLost},
		"a Pod with a volume that is gone is made again":                                     {[]func(*podFacts){onVolume, ran}, stepCreate},
		"but never on an empty volume":                                                       {[]func(*podFacts){onVolume, ran, withoutData}, stepLose},
		"nor if it was not seen running":                                                     {[]func(*podFacts){onVolume, created, withoutData}, stepLose},
		"a Pod with a volume that has failed is deleted, to be made again":                   {[]func(*podFacts){onVolume, ran, there(failed)}, stepReplace},
		"a Pod with a volume that is being deleted is waited for":                            {[]func(*podFacts){onVolume, ran, there(deleted)}, stepAwait},
		"a Pod with a volume that is being deleted is waited for until its kubelet has told": {[]func(*podFacts){onVolume, ran, there(deleted, unstarted)}, stepAwait},
		"a Pod with a volume whose containers have ended is let go":                          {[]func(*podFacts){onVolume, ran, there(deleted, ended)}, stepRemoveFinalizer},
		"a Pod with a volume that never had a node is let go":                                {[]func(*podFacts){onVolume, ran, there(deleted, unscheduled)}, stepRemoveFinalizer},
		"a Pod with a volume whose node is gone is let go":                                   {[]func(*podFacts){onVolume, ran, there(deleted), onLostNode}, stepRemoveFinalizer},
		"a Pod with a volume that has failed and is being deleted is let go":                 {[]func(*podFacts){onVolume, ran, there(deleted, failed)}, stepRemoveFinalizer},
		"a Pod that was made again on the volume is recorded":                                {[]func(*podFacts){onVolume, ran, there(another)}, stepBind},
		"nothing is done beside a Pod that is somebody else's":                               {[]func(*podFacts){there(foreign)}, stepRefuse},
		"nor beside one of another TalosMachine":                                             {[]func(*podFacts){creating, there(ofAnotherMachine)}, stepRefuse},
		"nor where the machine has a volume":                                                 {[]func(*podFacts){onVolume, ran, there(foreign)}, stepRefuse},
		"what is wiped is wiped whatever its Pod does":                                       {[]func(*podFacts){wiping, there(failed)}, stepWipe},
		"what is wiped is wiped when its Pod is gone":                                        {[]func(*podFacts){wiping}, stepWipe},
		"what is wiped is wiped on a volume too":                                             {[]func(*podFacts){onVolume, wiping, withoutData}, stepWipe},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := podFacts{machine: aWish().machine}
			for _, fact := range tt.facts {
				fact(&l)
			}
			NewWithT(t).Expect(l.next()).To(Equal(tt.next))
		})
	}
}

func TestWhatIsSaidOfALostMachine(t *testing.T) {
	for sentence, tt := range map[string]struct {
		facts []func(*podFacts)
		says  string
	}{
		"it was deleted":     {nil, "The Pod was deleted"},
		"it was evicted":     {[]func(*podFacts){there(failed, func(p *corev1.Pod) { p.Status.Message = "low on memory" })}, "has ended (Evicted: low on memory)"},
		"it has succeeded":   {[]func(*podFacts){there(succeeded)}, "has ended (Succeeded)"},
		"its volume is gone": {[]func(*podFacts){onVolume, withoutData}, "The volume claim of the machine is gone"},
	} {
		t.Run(sentence, func(t *testing.T) {
			l := podFacts{machine: aWish().machine}
			for _, fact := range tt.facts {
				fact(&l)
			}
			NewWithT(t).Expect(lostText(l)).To(And(ContainSubstring(tt.says), ContainSubstring("let a MachineHealthCheck replace it")))
		})
	}
}
