package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// spares are the hosts beyond the replicas. With a MachineHealthCheck there are two:
// the host of an unhealthy Machine may be broken, and goes into quarantine. Else there
// is one for the surge only, and the next Machine gets the host of the one that goes.
func (c cell) spares() int {
	switch {
	case c.moment.remediated || c.replaces():
		return 2
	case c.moment.surge != nil:
		return int(*c.moment.surge)
	}
	return 0
}

// probing is how often the balancers look at API servers; there are many.
const probing = time.Second

// delays are long enough for a moment to be met, and short enough to wait for.
func delays() talossim.Delays {
	const moment = 300 * time.Millisecond
	return talossim.Delays{Boot: moment, Install: moment, Reset: moment, Bootstrap: 10 * moment, Etcd: moment, Promote: 5 * moment, Leave: moment, Join: moment}
}

// addHosts makes the namespace and its hosts.
func (r *run) addHosts() error {
	var err error
	if r.fleet, err = simfleet.New(r.ctx, simfleet.Options{Personality: talossim.Metal, Delays: delays(), ProbeInterval: probing}); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.name()}}
	if err := world.Client.Create(r.ctx, namespace); err != nil {
		return fmt.Errorf("making the namespace: %w", err)
	}
	hosts, err := r.fleet.Add(r.ctx, max(r.moment.from(r.replicas), r.moment.to(r.replicas))+r.spares())
	if err != nil {
		return err
	}
	for _, host := range hosts {
		if err := r.apply(host.Manifest(r.name(), nil)); err != nil {
			return err
		}
	}
	return nil
}

// apply creates an object, as soon as admission answers. One that is there was
// created before the answer got lost.
func (r *run) apply(object client.Object) error {
	return r.await("an object to be taken", momentTimeout, seldom, func() error {
		fresh, ok := object.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", object)
		}
		if err := world.Client.Create(r.ctx, fresh); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s: %w", object, object.GetName(), err)
		}
		return nil
	})
}

// What stands in the manifests for what differs from cell to cell.
const (
	nameMark, hostMark, replicasMark, versionMark = "mark-name", "mark-host.example.com", "9", "v1.36.99"
)

// manifests are what clusterctl makes of the template, once for all cells.
var manifests = sync.OnceValues(func() ([]byte, error) { //nolint:gochecknoglobals // Made once.
	return world.Stack.Clusterctl.Generate(context.Background(), nameMark, map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": hostMark},
		"--infrastructure", "talos", "--flavor", "metal", "--target-namespace", nameMark, "--kubernetes-version", versionMark,
		"--control-plane-machine-count", replicasMark, "--worker-machine-count", "0")
})

// create makes the cluster: the template's, without workers, and with short times; offline
// where the fault wants that.
func (r *run) create() error {
	made, err := manifests()
	if err != nil {
		return err
	}
	endpoint, err := r.fleet.Endpoint(r.ctx, r.name())
	if err != nil {
		return err
	}
	replicas, version := r.moment.from(r.replicas), simfleet.KubernetesVersion
	if replicas == 0 {
		replicas = r.replicas
	}
	if r.moment.surge != nil {
		version = oldVersion
	}
	for mark, value := range map[string]string{
		nameMark: r.name(), hostMark: endpoint.Host, versionMark: version, "replicas: " + replicasMark: "replicas: " + strconv.Itoa(replicas),
	} {
		made = bytes.ReplaceAll(made, []byte(mark), []byte(value))
	}
	objects, err := management.Objects(made)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if strings.HasSuffix(object.GetName(), "-workers") {
			continue
		}
		if err := r.adapt(object); err != nil {
			return err
		}
		if err := r.apply(object); err != nil {
			return err
		}
	}
	return nil
}

// withoutDiscovery turns the discovery service off.
const withoutDiscovery = `cluster:
  discovery:
    enabled: false
`

// little is for how many seconds a silent node is waited for.
const little = 10

// adapt shortens the times of an object, and takes the discovery service away.
func (r *run) adapt(object *unstructured.Unstructured) error {
	set := func(value int64, path ...string) error {
		return unstructured.SetNestedField(object.Object, value, path...)
	}
	const release = 30
	switch object.GetKind() {
	case infrav1.TalosMachineTemplateKind:
		return set(release, "spec", "template", "spec", "metal", "releaseTimeoutSeconds")
	case controlplanev1.TalosControlPlaneKind:
		failures := []error{set(little, "spec", "etcd", "leaveTimeoutSeconds")}
		if r.fault.offline {
			failures = append(failures, unstructured.SetNestedStringSlice(object.Object, []string{withoutDiscovery}, "spec", "talosConfigSpec", "strategicPatches"))
		}
		for _, limit := range []string{"nodeDrainTimeoutSeconds", "nodeVolumeDetachTimeoutSeconds", "nodeDeletionTimeoutSeconds"} {
			failures = append(failures, set(little, "spec", "machineTemplate", "spec", "deletion", limit))
		}
		if r.moment.surge != nil {
			failures = append(failures,
				unstructured.SetNestedField(object.Object, "RollingUpdate", "spec", "rollout", "strategy", "type"),
				set(*r.moment.surge, "spec", "rollout", "strategy", "rollingUpdate", "maxSurge"))
		}
		return errors.Join(failures...)
	}
	return nil
}

// healthCheck finds machines whose nodes are not heard of.
func (r *run) healthCheck() *clusterv1.MachineHealthCheck {
	const startup, unheard = 60, 20
	check := &clusterv1.MachineHealthCheck{ObjectMeta: metav1.ObjectMeta{Namespace: r.name(), Name: r.name()}}
	check.Spec = clusterv1.MachineHealthCheckSpec{
		ClusterName: r.name(),
		Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachineControlPlaneLabel: ""}},
		Checks: clusterv1.MachineHealthCheckChecks{
			NodeStartupTimeoutSeconds: ptr.To[int32](startup),
			UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To[int32](unheard)},
				{Type: corev1.NodeReady, Status: corev1.ConditionFalse, TimeoutSeconds: ptr.To[int32](unheard)},
			},
		},
		Remediation: clusterv1.MachineHealthCheckRemediation{TriggerIf: clusterv1.MachineHealthCheckRemediationTriggerIf{
			UnhealthyLessThanOrEqualTo: ptr.To(intstr.FromString("100%")),
		}},
	}
	return check
}

// watching makes a reader that hears of control planes and their Machines, instead
// of asking for them: there are many cells, and the API server has enough to do.
func watching(ctx context.Context) (client.Reader, error) {
	heard, err := cache.New(world.Stack.Config, cache.Options{Scheme: world.Client.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("making a cache: %w", err)
	}
	for _, object := range []client.Object{&clusterv1.Machine{}, &controlplanev1.TalosControlPlane{}} {
		if _, err := heard.GetInformer(ctx, object); err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
	}
	go func() { _ = heard.Start(ctx) }() // It ends with the test.
	if !heard.WaitForCacheSync(ctx) {
		return nil, errors.New("the cache has not heard of anything")
	}
	return heard, nil
}

func (r *run) controlPlane() (*controlplanev1.TalosControlPlane, error) {
	found := &controlplanev1.TalosControlPlane{}
	if err := seen.Get(r.ctx, client.ObjectKey{Namespace: r.name(), Name: r.name() + "-control-plane"}, found); err != nil {
		return nil, fmt.Errorf("reading the control plane: %w", err)
	}
	return found, nil
}

func (r *run) changeControlPlane(change func(*controlplanev1.TalosControlPlane)) error {
	found, err := r.controlPlane()
	if err != nil {
		return err
	}
	before := found.DeepCopy()
	change(found)
	return world.Client.Patch(r.ctx, found, client.MergeFrom(before))
}

func (r *run) controlPlaneMachines() ([]clusterv1.Machine, error) {
	found := &clusterv1.MachineList{}
	if err := seen.List(r.ctx, found, client.InNamespace(r.name()), client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
		return nil, fmt.Errorf("listing the Machines: %w", err)
	}
	return found.Items, nil
}

// settled is nil when all Machines are there, as they are wanted, and none is on its
// way.
func (r *run) settled() error {
	machines, err := r.controlPlaneMachines()
	if err != nil {
		return err
	}
	if len(machines) != r.moment.to(r.replicas) {
		return fmt.Errorf("%d Machines", len(machines))
	}
	for i := range machines {
		if !machines[i].DeletionTimestamp.IsZero() || !machines[i].Status.NodeRef.IsDefined() || !conditions.IsTrue(&machines[i], clusterv1.MachineUpToDateCondition) {
			return fmt.Errorf("%s comes or goes", machines[i].Name)
		}
	}
	return nil
}

// healthy is nil when the control plane has so many replicas, in Cluster API as in
// etcd, and nothing else goes on.
func (r *run) healthy(replicas int) error {
	machines, err := r.controlPlaneMachines()
	if err != nil {
		return err
	}
	controlPlane, err := r.controlPlane()
	if err != nil {
		return err
	}
	var wrong []string
	note := func(good bool, format string, args ...any) {
		if !good {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	note(len(machines) == replicas, "%d of %d Machines", len(machines), replicas)
	for i := range machines {
		machine := &machines[i]
		note(machine.DeletionTimestamp.IsZero(), "%s is being deleted", machine.Name)
		note(conditions.IsTrue(machine, clusterv1.AvailableCondition), "%s is not Available: %s", machine.Name, conditions.GetMessage(machine, clusterv1.AvailableCondition))
		note(conditions.IsTrue(machine, clusterv1.MachineUpToDateCondition), "%s is not UpToDate", machine.Name)
	}
	status := controlPlane.Status
	note(status.ObservedGeneration == controlPlane.Generation, "generation %d is observed of %d", status.ObservedGeneration, controlPlane.Generation)
	for name, count := range map[string]*int32{"replicas": status.Replicas, "ready": status.ReadyReplicas, "available": status.AvailableReplicas, "up to date": status.UpToDateReplicas} {
		note(int(ptr.Deref(count, 0)) == replicas, "%d %s", ptr.Deref(count, 0), name)
	}
	for _, kind := range []string{controlplanev1.AvailableCondition, controlplanev1.EtcdClusterHealthyCondition} {
		note(conditions.IsTrue(controlPlane, kind), "%s: %s", kind, conditions.GetMessage(controlPlane, kind))
	}
	for _, kind := range []string{controlplanev1.RollingOutCondition, controlplanev1.ScalingUpCondition, controlplanev1.ScalingDownCondition, controlplanev1.RemediatingCondition} {
		note(conditions.IsFalse(controlPlane, kind), "%s: %s", kind, conditions.GetMessage(controlPlane, kind))
	}
	for _, m := range r.machines() {
		note(!m.HasEtcdData() || m.Faults().Gone || bytes.Contains(m.Configuration(), []byte("kubelet:"+controlPlane.Spec.Version)), "%s does not run %s", m.Spec().Name, controlPlane.Spec.Version)
		count := r.fleet.Sim.Voters(m)
		note(count == (etcdmodel.Count{}) || m.Faults().Gone || count == (etcdmodel.Count{Voters: replicas, Answering: replicas}), "%s of the voters answer", count)
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// tells is nil when a condition of the control plane names the cause.
func (r *run) tells(cause *regexp.Regexp) error {
	controlPlane, err := r.controlPlane()
	if err != nil {
		return err
	}
	for _, condition := range controlPlane.Status.Conditions {
		if cause.MatchString(condition.Reason + ": " + condition.Message) {
			return nil
		}
	}
	return fmt.Errorf("no condition says %s: %s", cause, summary(controlPlane))
}

// summary is what the conditions say that are not as they should be.
func summary(controlPlane *controlplanev1.TalosControlPlane) string {
	var parts []string
	for _, condition := range controlPlane.Status.Conditions {
		if condition.Message != "" {
			parts = append(parts, condition.Type+" "+string(condition.Status)+" "+condition.Reason+": "+condition.Message)
		}
	}
	return strings.Join(parts, "; ")
}

// giveUp pauses what is left, and ends the machines.
func (r *run) giveUp() error {
	r.ctx = context.WithoutCancel(r.ctx)
	if r.fleet == nil {
		return nil
	}
	err := r.await("the cluster to be paused", momentTimeout, seldom, func() error {
		cluster := &clusterv1.Cluster{}
		if err := world.Client.Get(r.ctx, client.ObjectKey{Namespace: r.name(), Name: r.name()}, cluster); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := cluster.DeepCopy()
		cluster.Spec.Paused = ptr.To(true)
		return world.Client.Patch(r.ctx, cluster, client.MergeFrom(before))
	})
	hosts := &infrav1.TalosHostList{}
	if list := world.Client.List(r.ctx, hosts, client.InNamespace(r.name())); list == nil {
		for i := range hosts.Items {
			// Those that are claimed stay, paused with their cluster.
			_ = world.Client.Delete(r.ctx, &hosts.Items[i])
		}
	}
	return errors.Join(err, r.fleet.Close(r.ctx))
}
