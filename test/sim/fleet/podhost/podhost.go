// Package podhost lets a kube-apiserver without nodes run Pods of the Talos
// image: it stands for the kubelets, for kube-proxy and for the driver of the
// volumes, with talossim in the containers. The scheduler and the controllers are
// Kubernetes' own.
//
// Pods have loopback addresses, and so have the balancers of Services of type
// LoadBalancer: those are reached from this host. Cluster IPs are not; only the
// machines' etcd asks where they lead to. What is said here about kubelets is after
// Kubernetes v1.36 (pkg/kubelet); what they wait for is shorter: there is no
// growing back-off.
package podhost

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

const (
	// Provisioner is the one of the storage classes whose volumes can be had.
	Provisioner = "volumes.podhost.example.com"
	// StorageClass is the default storage class.
	StorageClass = "standard"
	// SpareNode is the node that takes only Pods that tolerate SpareTaint. It is in no
	// zone.
	SpareNode = "node-4"
	// SpareTaint is the key of its taint.
	SpareTaint = "podhost.example.com/spare"
	// nodes are how many nodes there are, each but the spare one in a zone of its own.
	nodes = 4
	// addressesPerNode is the size of the Pod network of a node, a /27; what is
	// above them is for nodes and load balancers.
	addressesPerNode = 32
	firstSpare       = nodes*addressesPerNode + 1
	// zonePrefix begins the names of zones, nodePrefix those of nodes.
	zonePrefix, nodePrefix = "zone-", "node-"
)

// Options are what a Host is made of.
type Options struct {
	// Config is that of an administrator of the management cluster.
	Config *rest.Config
	// Delays are how long things take in the machines.
	Delays talossim.Delays
}

// Host runs Pods.
type Host struct {
	// Sim are the machines in the containers.
	Sim *talossim.Sim

	client   client.Client
	live     client.Reader
	clusters *kube.Clusters
	subnet   *talossim.Subnet
	proxy    *proxy
	ctx      context.Context //nolint:containedctx // The life of the kubelets.
	stop     context.CancelFunc
	running  sync.WaitGroup
	events   chan event.GenericEvent

	mu sync.Mutex
	// images are those that are not simply had, by their names.
	images map[string]Image
	// gone are the nodes that are no more.
	gone map[string]bool
	// workers are by the names of their Pods.
	workers map[client.ObjectKey]*worker
	// volumes are the machines whose data lies on a volume, by its name.
	volumes map[string]*talossim.Machine
	// created are the UIDs of all Pods that a node has ever had.
	created map[client.ObjectKey][]string
	// taken are the addresses in use, by their last byte, and next is where the
	// search for a free one begins, by node.
	taken map[int]bool
	next  map[int]int
	made  int
	// balanced are the addresses of Services of type LoadBalancer, by their names.
	balanced map[client.ObjectKey]string
}

// Start makes the nodes and runs Pods until Close.
func Start(ctx context.Context, options Options) (_ *Host, err error) {
	h := &Host{
		events: make(chan event.GenericEvent), images: map[string]Image{}, gone: map[string]bool{},
		workers: map[client.ObjectKey]*worker{}, volumes: map[string]*talossim.Machine{}, created: map[client.ObjectKey][]string{},
		taken: map[int]bool{}, next: map[int]int{}, balanced: map[client.ObjectKey]string{},
	}
	h.ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if h.subnet, err = talossim.ClaimSubnet(ctx); err != nil {
		return nil, err
	}
	if h.clusters, err = kube.New(); err != nil {
		return nil, err
	}
	h.proxy = newProxy()
	h.Sim = talossim.New(talossim.Options{Clusters: h.clusters, Delays: options.Delays, RoutesTo: h.proxy.routesTo})
	h.proxy.changed = h.Sim.Rerouted
	manager, err := h.manager(options.Config)
	if err != nil {
		return nil, err
	}
	if err := h.addNodes(ctx); err != nil {
		return nil, err
	}
	failed := make(chan error, 1)
	h.running.Go(func() { failed <- manager.Start(h.ctx) })
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("starting the host of Pods: its cache has not heard of anything"), ctx.Err())
	}
	select {
	case err := <-failed:
		return nil, fmt.Errorf("starting the host of Pods: %w", err)
	default:
		return h, nil
	}
}

// manager watches Pods, Services and claims.
func (h *Host) manager(of *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	manager, err := ctrl.NewManager(of, ctrl.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Client:     client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.Node{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("making the host of Pods: %w", err)
	}
	h.client, h.live = manager.GetClient(), manager.GetAPIReader()
	for _, add := range []func(ctrl.Manager) error{h.runKubelets, h.runProxy, h.runProvisioner} {
		if err := add(manager); err != nil {
			return nil, fmt.Errorf("making the host of Pods: %w", err)
		}
	}
	return manager, nil
}

// Close ends all Pods without telling anybody. It may be called twice.
func (h *Host) Close() {
	h.stop()
	if h.Sim != nil {
		h.Sim.Close()
	}
	h.running.Wait()
	if h.proxy != nil {
		h.proxy.close()
	}
	if h.clusters != nil {
		h.clusters.Close()
	}
}

// addNodes makes the nodes, and the default storage class.
func (h *Host) addNodes(ctx context.Context) error {
	for number := range nodes {
		if err := h.addNode(ctx, number); err != nil {
			return err
		}
	}
	return h.AddStorageClass(ctx, StorageClass, storagev1.VolumeBindingImmediate, true)
}

// AddStorageClass makes a storage class whose volumes can be had, at once or for a Pod that
// has a node.
func (h *Host) AddStorageClass(ctx context.Context, name string, binding storagev1.VolumeBindingMode, byDefault bool) error {
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": strconv.FormatBool(byDefault)}},
		Provisioner: Provisioner, ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete), VolumeBindingMode: &binding,
	}
	if err := h.client.Create(ctx, class); err != nil {
		return fmt.Errorf("making storage class %s: %w", name, err)
	}
	return nil
}

// podNetwork is the network of the Pods of a node.
func (h *Host) podNetwork(number int) string {
	const bits = 27
	return fmt.Sprintf("%s/%d", h.subnet.Address(number*addressesPerNode), bits)
}

// PodNetworks are those of the nodes.
func (h *Host) PodNetworks() []string {
	var found []string
	for number := range nodes {
		found = append(found, h.podNetwork(number))
	}
	return found
}

// addNode is a kubelet that registers, and the node controller that takes the
// taint of a new node away.
func (h *Host) addNode(ctx context.Context, number int) error {
	name := nodePrefix + strconv.Itoa(number+1)
	amount := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{PodCIDR: h.podNetwork(number), PodCIDRs: []string{h.podNetwork(number)}},
	}
	var taints []corev1.Taint
	if name == SpareNode {
		taints = []corev1.Taint{{Key: SpareTaint, Effect: corev1.TaintEffectNoSchedule}}
	} else {
		node.Labels[corev1.LabelTopologyZone] = zonePrefix + strconv.Itoa(number+1)
	}
	status := corev1.NodeStatus{
		Capacity: amount, Allocatable: amount,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.nodeAddress(number)}, {Type: corev1.NodeHostName, Address: name}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
		NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.36.3", OSImage: "podhost"},
	}
	if err := h.client.Create(ctx, node); err != nil {
		return fmt.Errorf("registering %s: %w", name, err)
	}
	node.Status = status
	if err := h.client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("telling the status of %s: %w", name, err)
	}
	before := node.DeepCopy()
	node.Spec.Taints = taints
	if err := h.client.Patch(ctx, node, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("making %s schedulable: %w", name, err)
	}
	return nil
}

func (h *Host) nodeAddress(number int) string { return h.subnet.Address(firstSpare + number) }

// numberOf is the number of a node; -1 when it is none of this host's, or is gone.
func (h *Host) numberOf(node string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for number := range nodes {
		if node == nodePrefix+strconv.Itoa(number+1) && !h.gone[node] {
			return number
		}
	}
	return -1
}

// takeAddress is a free address of a node. One that was given back is taken again
// after all others.
func (h *Host) takeAddress(number int) (string, int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	const usable = addressesPerNode - 2
	for range usable {
		h.next[number]++
		last := number*addressesPerNode + 1 + h.next[number]%usable
		if !h.taken[last] {
			h.taken[last] = true
			return h.subnet.Address(last), last, nil
		}
	}
	return "", 0, fmt.Errorf("no address is free on %s%d", nodePrefix, number+1)
}

func (h *Host) giveAddress(last int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.taken, last)
}

// newMachine is one with empty volumes.
func (h *Host) newMachine(name string) (*talossim.Machine, error) {
	h.mu.Lock()
	h.made++
	number := h.made
	h.mu.Unlock()
	second, third := h.subnet.Bytes()
	return h.Sim.Add(talossim.MachineSpec{
		Name: name, Hosted: true, MAC: fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", second, third, number>>8&0xff, number&0xff),
	})
}

// soon is when something is looked at again that nobody tells of.
const soon = 300 * time.Millisecond
