package kube

import (
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	rolePrefix = "node-role.kubernetes.io/"
	none       = "<none>"
)

// wantsTable reports whether kubectl would like to print the answer.
func wantsTable(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=Table")
}

// nodeTable is what kubectl prints for "get nodes".
func (o *overlay) nodeTable(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	nodes := &corev1.NodeList{}
	if info.Verb == "get" {
		node := corev1.Node{}
		if err := o.client.Get(r.Context(), client.ObjectKey{Name: info.Name}, &node); err != nil {
			writeError(w, err)
			return
		}
		nodes.Items = append(nodes.Items, node)
	} else {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err == nil {
			err = o.client.List(r.Context(), nodes, client.MatchingLabelsSelector{Selector: selector})
		}
		if err != nil {
			writeError(w, err)
			return
		}
	}
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	table := &metav1.Table{
		TypeMeta:          metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "Table"},
		ListMeta:          nodes.ListMeta,
		ColumnDefinitions: nodeColumns(),
	}
	for i := range nodes.Items {
		table.Rows = append(table.Rows, nodeRow(&nodes.Items[i]))
	}
	writeJSON(w, http.StatusOK, table)
}

// nodeColumns are those of kube-apiserver; priority 1 is for -o wide.
func nodeColumns() []metav1.TableColumnDefinition {
	column := func(name string, priority int32) metav1.TableColumnDefinition {
		return metav1.TableColumnDefinition{Name: name, Type: "string", Priority: priority}
	}
	columns := []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}}
	for _, name := range []string{"Status", "Roles", "Age", "Version"} {
		columns = append(columns, column(name, 0))
	}
	for _, name := range []string{"Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"} {
		columns = append(columns, column(name, 1))
	}
	return columns
}

func nodeRow(node *corev1.Node) metav1.TableRow {
	info := node.Status.NodeInfo
	cells := []any{
		node.Name, nodeStatus(node), nodeRoles(node), duration.HumanDuration(time.Since(node.CreationTimestamp.Time)), info.KubeletVersion,
		nodeAddress(node, corev1.NodeInternalIP), nodeAddress(node, corev1.NodeExternalIP), info.OSImage, info.KernelVersion, info.ContainerRuntimeVersion,
	}
	partial := meta.AsPartialObjectMetadata(node)
	partial.TypeMeta = metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"}
	return metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: partial}}
}

func nodeStatus(node *corev1.Node) string {
	status := "Unknown"
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			status = "NotReady"
			if condition.Status == corev1.ConditionTrue {
				status = "Ready"
			}
		}
	}
	if node.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func nodeRoles(node *corev1.Node) string {
	var roles []string
	for label := range node.Labels {
		if role, found := strings.CutPrefix(label, rolePrefix); found && role != "" {
			roles = append(roles, role)
		}
	}
	if len(roles) == 0 {
		return none
	}
	slices.Sort(roles)
	return strings.Join(roles, ",")
}

func nodeAddress(node *corev1.Node, of corev1.NodeAddressType) string {
	for _, address := range node.Status.Addresses {
		if address.Type == of {
			return address.Address
		}
	}
	return none
}
