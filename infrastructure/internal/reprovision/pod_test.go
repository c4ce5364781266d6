package reprovision

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestRefusePod(t *testing.T) {
	made := func(name string, progress infrav1.PodProgress, changes ...func(*infrav1.TalosMachine)) infrav1.TalosMachine {
		machine := infrav1.TalosMachine{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{infrav1.TalosMachineFinalizer}},
			Spec:       infrav1.TalosMachineSpec{Pod: infrav1.TalosMachinePod{Progress: progress}},
		}
		for _, change := range changes {
			change(&machine)
		}
		return machine
	}
	annotated := func(key, value string) func(*infrav1.TalosMachine) {
		return func(m *infrav1.TalosMachine) { metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value) }
	}
	wished := annotated(infrav1.ReprovisionAnnotation, "")
	provisioned := func(m *infrav1.TalosMachine) { m.Status.Initialization.Provisioned = ptr.To(true) }
	for sentence, tt := range map[string]struct {
		changes      []func(*infrav1.TalosMachine)
		others       []infrav1.TalosMachine
		fromTemplate bool
		noData       bool
		want         string
	}{
		"nothing speaks against it":                    {},
		"others run, and wait":                         {others: []infrav1.TalosMachine{made("b", infrav1.PodRan, wished), made("c", infrav1.PodLost)}},
		"another one comes up for the first time":      {others: []infrav1.TalosMachine{made("b", infrav1.PodCreated)}},
		"another one is being wiped":                   {others: []infrav1.TalosMachine{made("b", infrav1.PodReprovisioning)}, want: infrav1.ReprovisioningBlockedReason},
		"another one comes up again":                   {others: []infrav1.TalosMachine{made("b", infrav1.PodCreated, provisioned)}, want: infrav1.ReprovisioningBlockedReason},
		"another one comes up again, without a status": {others: []infrav1.TalosMachine{made("b", infrav1.PodCreating, wished)}, want: infrav1.ReprovisioningBlockedReason},
		"it is wiped itself":                           {others: []infrav1.TalosMachine{made("a", infrav1.PodReprovisioning)}},
		"a person overrides": {
			changes: []func(*infrav1.TalosMachine){annotated(infrav1.ReprovisionAnnotation, infrav1.ReprovisionDespiteOthers)},
			others:  []infrav1.TalosMachine{made("b", infrav1.PodReprovisioning)},
		},
		"the annotation comes from a template": {fromTemplate: true, want: infrav1.ReprovisionFromTemplateReason},
		"the configuration is missing":         {noData: true, want: infrav1.ReprovisionDataMissingReason},
		"it does not carry a finalizer":        {changes: []func(*infrav1.TalosMachine){func(m *infrav1.TalosMachine) { m.Finalizers = nil }}, want: infrav1.ReprovisionGoingReason},
		"it was moved":                         {changes: []func(*infrav1.TalosMachine){annotated(infrav1.DeleteForMoveAnnotation, "")}, want: infrav1.ReprovisionGoingReason},
	} {
		t.Run(sentence, func(t *testing.T) {
			machine := made("a", infrav1.PodRan, append([]func(*infrav1.TalosMachine){wished}, tt.changes...)...)
			got := RefusePod(PodFacts{Machine: &machine, Others: tt.others, FromTemplate: tt.fromTemplate, HasData: !tt.noData})
			NewWithT(t).Expect(got.Reason).To(Equal(tt.want))
			NewWithT(t).Expect(got.Message != "").To(Equal(tt.want != ""))
		})
	}
}
