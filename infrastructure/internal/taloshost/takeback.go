package taloshost

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TakeBackHandover takes a hand-over back that was recorded just now, and of which nothing was
// sent: the records are again what they were before.
func TakeBackHandover(host, before *infrav1.TalosHost) error {
	if err := check(host, "TakeBackHandover"); err != nil {
		return err
	}
	host.Spec.Handover = infrav1.HostHandover{}
	host.Spec.Wiped = before.Spec.Wiped
	setBlockMove(host, metav1.HasAnnotation(before.ObjectMeta, infrav1.BlockMoveAnnotation))

	return nil
}
