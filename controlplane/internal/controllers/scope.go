package controllers

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// scope is what one reconcile knows about one control plane.
type scope struct {
	cluster      *clusterv1.Cluster
	controlPlane *controlplanev1.TalosControlPlane

	// written is the resource version of the control plane after the last write
	// in this reconcile; empty when there was none.
	written string

	// machinesListed reports whether machines and foreign are known.
	machinesListed bool
	// counted reports whether the control plane, as it was read, counts a Machine.
	counted bool
	// machines are the Machines of this control plane, in the order of names.
	machines []*clusterv1.Machine
	// foreign are the names of other control plane Machines of the Cluster.
	foreign []string

	// bundle is nil when it is missing, changed or could not be read.
	bundle *secrets.Bundle
	// certificates is the state of the secrets of the cluster; unknown until it was
	// looked at.
	certificates plan.CertificatesState
	// certificatesErr says why the state is not known.
	certificatesErr error
	// invalidBundle reports whether there is a Secret without a usable bundle.
	invalidBundle bool
	// networkProblem says in words what of the network of the Cluster is other than it
	// began with; empty when nothing is.
	networkProblem string
	// missingSecrets are the names of the Secrets that are missing.
	missingSecrets []string
	// kubeconfig is nil until there is one.
	kubeconfig []byte
	// expiries are when the certificates of the cluster expire; nil when the
	// secrets bundle cannot be used, or was not looked at.
	expiries []clientconfig.Expiry
	// notRenewed say which client certificates could not be made anew, though a person
	// wants it, and why.
	notRenewed []string

	// parts are what the Machines refer to, by the name of the Machine.
	parts map[string]parts
	// nodes are the facts about nodes by the name of the Machine.
	nodes map[string]health.Facts
	// recalled reports whether nodes are from memory.
	recalled bool
	// apiServer is what answers at the endpoint.
	apiServer health.APIServerState
	// template is the infrastructure machine template; nil when there is none.
	template *unstructured.Unstructured
	// templateMismatch says why Machines of the template could not be part of the
	// control plane; empty when they could, or none is to be made.
	templateMismatch string
	// templateMissing says that there is no template; empty when there is one.
	templateMissing string
	// outdated says by the name of the Machine why it is not up to date.
	outdated map[string][]string

	// intentWiped reports whether nothing is left of the machine in the bootstrap intent.
	intentWiped bool

	// facts are what was decided on.
	facts plan.Facts
	// gatherErr is why the facts could not be gathered.
	gatherErr error
	// decision is what was decided; its Action is empty when nothing was.
	decision plan.Decision
	// leftovers are what an aborted creation of a Machine has left, when the control
	// plane is deleted.
	leftovers []client.Object
	// deletion is what was decided about the deletion.
	deletion plan.Decision
	// effectErr is why the decision could not be carried out.
	effectErr error
}

// initialized reports whether the API server has answered before.
func (s *scope) initialized() bool {
	intent := s.intent()

	return ptr.Deref(s.controlPlane.Status.Initialization.ControlPlaneInitialized, false) ||
		ptr.Deref(s.cluster.Status.Initialization.ControlPlaneInitialized, false) || (intent != nil && intent.Initialized)
}

// restoreOf is the restore that holds a control plane: the one in progress, or, before there is
// a cluster, the one that a person has named.
func restoreOf(controlPlane *controlplanev1.TalosControlPlane, initialized bool) controlplanev1.RestoreRecord {
	if record := objects.Record[controlplanev1.RestoreRecord](controlPlane, controlplanev1.RestoreInProgressAnnotation); record != nil {
		return *record
	}
	if initialized {
		return controlplanev1.RestoreRecord{}
	}

	return controlplanev1.RestoreRecord{Restore: controlPlane.Annotations[controlplanev1.RestoreAnnotation]}
}

// decided reports whether all facts were gathered, and a decision made, in this reconcile.
func (s *scope) decided() bool { return s.gatherErr == nil && s.decision.Action != "" }

// deleting reports whether the whole control plane goes.
func (s *scope) deleting() bool {
	return !s.controlPlane.DeletionTimestamp.IsZero() || !s.cluster.DeletionTimestamp.IsZero()
}

// machine finds a Machine by name; nil when there is none.
func (s *scope) machine(name string) *clusterv1.Machine {
	for _, machine := range s.machines {
		if machine.Name == name {
			return machine
		}
	}

	return nil
}

// views are what the nodes that answered say about etcd.
func (s *scope) views() []etcd.View {
	var views []etcd.View
	for _, machine := range s.machines {
		if facts := s.nodes[machine.Name]; facts.Etcd != nil {
			views = append(views, *facts.Etcd)
		}
	}

	return views
}

// intent is the recorded bootstrap intent; nil when there is none. An intent
// that cannot be read names no Machine that exists, so nothing is bootstrapped.
func (s *scope) intent() *controlplanev1.BootstrapIntent {
	return bootstrapIntent(s.controlPlane)
}

func bootstrapIntent(controlPlane *controlplanev1.TalosControlPlane) *controlplanev1.BootstrapIntent {
	value, found := controlPlane.Annotations[controlplanev1.BootstrapIntentAnnotation]
	if !found {
		return nil
	}
	intent := &controlplanev1.BootstrapIntent{}
	if err := json.Unmarshal([]byte(value), intent); err != nil {
		return &controlplanev1.BootstrapIntent{}
	}

	return intent
}

// versionPending reports whether the topology of the Cluster is about to bring
// another version to the control plane: no Machine is made with the present one
// any more, unless it is a step on the way.
func versionPending(s *scope) bool {
	version := s.controlPlane.Spec.Version

	return s.cluster.Spec.Topology.IsDefined() && s.cluster.Spec.Topology.Version != version &&
		s.cluster.Annotations[clusterv1.ClusterTopologyUpgradeStepAnnotation] != version
}
