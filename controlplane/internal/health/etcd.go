package health

import (
	"context"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// EtcdState is how etcd is on a node, before anybody could ask etcd itself.
type EtcdState struct {
	// Data reports whether there is data.
	Data EtcdData
	// Service is the Talos service; the zero one when it is not known.
	Service talosclient.Service
}

// Node is what tells how etcd is on a node.
type Node interface {
	Services(ctx context.Context) ([]talosclient.Service, error)
	EtcdDataExists(ctx context.Context) (bool, error)
}

// LookAtEtcd asks a node on a connection that is open: what is gathered at the
// beginning of a reconcile is old by the time when something is done.
func LookAtEtcd(ctx context.Context, node Node) EtcdState {
	found, err := services(ctx, node)
	if err != nil {
		return EtcdState{Data: EtcdDataUnknown}
	}

	return EtcdState{Data: etcdData(ctx, node, found), Service: found[talosclient.EtcdService]}
}

// EtcdService is the Talos service etcd of a node; the zero one when it is not known.
func (f Facts) EtcdService() talosclient.Service { return f.Services[talosclient.EtcdService] }
