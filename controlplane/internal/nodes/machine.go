// Package nodes observes the Talos nodes of control plane Machines, and keeps what a manager
// knows of them while it runs. None of that is needed to be right after a restart.
package nodes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KeyOf is the key of a Machine.
func KeyOf(machine *clusterv1.Machine) client.ObjectKey {
	return client.ObjectKeyFromObject(machine)
}

// MachineOf is the Machine of a key, for the events of a Watcher.
func MachineOf(key client.ObjectKey) client.Object {
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}
