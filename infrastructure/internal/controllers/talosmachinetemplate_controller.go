package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/capacity"
)

// MachineTemplateReconciler tells in the status of TalosMachineTemplates what a Node
// made from them will be like. Client and APIReader are required.
type MachineTemplateReconciler struct {
	// Client reads from the cache of the management cluster.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// WatchFilterValue restricts the controller to objects with this value of
	// the watch-filter label; empty means all.
	WatchFilterValue string
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachinetemplates,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=talosmachinetemplates/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch

// SetupWithManager registers the controller with mgr.
func (r *MachineTemplateReconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	if r.Client == nil || r.APIReader == nil {
		return errors.New("setting up the TalosMachineTemplate controller: a required field is nil")
	}
	log := ctrl.LoggerFrom(ctx).WithValues("controller", "talosmachinetemplate")
	// Nodes carry no label of ours, so that the filter is not for their events.
	filter := predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilterValue)
	err := capicontroller.NewControllerManagedBy(mgr, log).
		For(&infrav1.TalosMachineTemplate{}, builder.WithPredicates(filter)).
		WithOptions(options).
		WithEventFilter(reconciliation.IgnoreWords()).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.clusterToTemplates), predicates.ClusterPausedTransitions(mgr.GetScheme(), log)).
		Watches(&infrav1.TalosHost{}, handler.EnqueueRequestsFromMapFunc(r.hostToTemplates), changes(isOtherHardware)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.nodeToTemplates), changes(isOtherNode)).
		Complete(ctx, r)
	if err != nil {
		return fmt.Errorf("setting up the TalosMachineTemplate controller: %w", err)
	}

	return nil
}

// Reconcile reconciles one TalosMachineTemplate.
func (r *MachineTemplateReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	template := &infrav1.TalosMachineTemplate{}
	if err := r.Client.Get(ctx, req.NamespacedName, template); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !template.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	// That of a ClusterClass belongs to no Cluster.
	cluster, err := util.GetOwnerCluster(ctx, r.Client, template.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading the owner Cluster: %w", err)
	}
	if proceed, err := reconciliation.Begin(ctx, r.Client, r.APIReader, cluster, template, ""); err != nil || !proceed {
		return ctrl.Result{}, err
	}

	return ctrl.Result{}, r.reconcileCapacity(ctx, template)
}

// reconcileCapacity writes what a Node made from the template will be like, if that is
// another thing than before.
func (r *MachineTemplateReconciler) reconcileCapacity(ctx context.Context, template *infrav1.TalosMachineTemplate) error {
	before := template.DeepCopy()
	var err error
	switch spec := template.Spec.Template.Spec; {
	case spec.Container != nil:
		err = r.reconcileContainer(ctx, spec.Container, &template.Status)
	case spec.Metal != nil:
		err = r.reconcileMetal(ctx, template.Namespace, spec.Metal, &template.Status)
	}
	if err != nil || apiequality.Semantic.DeepEqual(before.Status, template.Status) {
		return err
	}
	if err := r.Client.Status().Patch(ctx, template, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the TalosMachineTemplate: %w", err)
	}

	return nil
}

func (r *MachineTemplateReconciler) reconcileContainer(ctx context.Context, spec *infrav1.TalosMachineContainerSpec, status *infrav1.TalosMachineTemplateStatus) error {
	nodes := &corev1.NodeList{}
	if err := r.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing the nodes of the management cluster: %w", err)
	}
	status.Capacity = capacity.OfContainer(spec)
	status.NodeInfo = capacity.PlatformOfContainer(spec, nodes.Items)

	return nil
}

func (r *MachineTemplateReconciler) reconcileMetal(ctx context.Context, namespace string, spec *infrav1.TalosMachineMetalSpec, status *infrav1.TalosMachineTemplateStatus) error {
	hosts := &infrav1.TalosHostList{}
	if err := r.Client.List(ctx, hosts, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing TalosHosts: %w", err)
	}
	status.Capacity = capacity.OfMetal(spec, hosts.Items)
	status.NodeInfo = capacity.PlatformOfMetal(spec, hosts.Items)

	return nil
}

// clusterToTemplates maps a Cluster to the templates that it owns.
func (r *MachineTemplateReconciler) clusterToTemplates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.list(ctx, func(template *infrav1.TalosMachineTemplate) bool {
		return util.HasOwnerRef(template.OwnerReferences, metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: object.GetName(),
		})
	}, client.InNamespace(object.GetNamespace()))
}

// hostToTemplates maps a host to the templates that may select it.
func (r *MachineTemplateReconciler) hostToTemplates(ctx context.Context, object client.Object) []ctrl.Request {
	return r.list(ctx, func(template *infrav1.TalosMachineTemplate) bool {
		return template.Spec.Template.Spec.Metal != nil
	}, client.InNamespace(object.GetNamespace()))
}

// nodeToTemplates maps a node of the management cluster to the templates of Pods.
func (r *MachineTemplateReconciler) nodeToTemplates(ctx context.Context, _ client.Object) []ctrl.Request {
	return r.list(ctx, func(template *infrav1.TalosMachineTemplate) bool {
		return template.Spec.Template.Spec.Container != nil
	})
}

func (r *MachineTemplateReconciler) list(ctx context.Context, wanted func(*infrav1.TalosMachineTemplate) bool, options ...client.ListOption) []ctrl.Request {
	templates := &infrav1.TalosMachineTemplateList{}
	if err := r.Client.List(ctx, templates, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list TalosMachineTemplates")
		return nil
	}
	var requests []ctrl.Request
	for i := range templates.Items {
		template := &templates.Items[i]
		isOurs := r.WatchFilterValue == "" || capilabels.HasWatchLabel(template, r.WatchFilterValue)
		if isOurs && wanted(template) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(template)})
		}
	}

	return requests
}

// changes lets what is new or gone through, and of updates those that matter.
func changes(matters func(before, after client.Object) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return matters(e.ObjectOld, e.ObjectNew) }}
}

// isOtherHardware tells a host that templates may see in another way now.
func isOtherHardware(before, after client.Object) bool {
	old, isHost := before.(*infrav1.TalosHost)
	host, isHostToo := after.(*infrav1.TalosHost)

	return isHost && isHostToo && !apiequality.Semantic.DeepEqual(
		[]any{old.Labels, old.Status.Hardware, old.DeletionTimestamp}, []any{host.Labels, host.Status.Hardware, host.DeletionTimestamp})
}

// isOtherNode tells a node that templates may see in another way now: its heartbeats
// change nothing.
func isOtherNode(before, after client.Object) bool {
	old, isNode := before.(*corev1.Node)
	node, isNodeToo := after.(*corev1.Node)

	return isNode && isNodeToo && !apiequality.Semantic.DeepEqual(
		[]any{old.Labels, old.Spec.Taints, old.Status.NodeInfo.Architecture, old.Status.NodeInfo.OperatingSystem, old.DeletionTimestamp},
		[]any{node.Labels, node.Spec.Taints, node.Status.NodeInfo.Architecture, node.Status.NodeInfo.OperatingSystem, node.DeletionTimestamp})
}
