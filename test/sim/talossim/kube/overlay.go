package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	inmemoryclient "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/runtime/client"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// overlay does what Cluster API's in-memory handler does not, or not as
// kube-apiserver does: patches, deletions, evictions, tables of nodes, watches
// of metadata, watches that begin anew with all that there is, revisions that were raised,
// and the Pods of a node that is deleted. Everything else goes to that handler. A
// status is no resource of its own: what is written to it is written to the object.
type overlay struct {
	client   inmemoryclient.Client
	scheme   *runtime.Scheme
	mapper   meta.RESTMapper
	requests *request.RequestInfoFactory
	handler  http.Handler
	// raised is by how much revisions are higher than those of the handler.
	raised atomic.Int64
}

func newOverlay(storage inmemoryclient.Client, scheme *runtime.Scheme, handler http.Handler) *overlay {
	mapper := meta.NewDefaultRESTMapper(scheme.PrioritizedVersionsAllGroups())
	for kind := range scheme.AllKnownTypes() {
		mapper.Add(kind, meta.RESTScopeNamespace) // Scopes are not asked for.
	}
	return &overlay{
		client: storage, scheme: scheme, mapper: mapper, handler: handler,
		requests: &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")},
	}
}

// ServeHTTP implements http.Handler.
func (o *overlay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("dryRun") != "" {
		writeError(w, apierrors.NewBadRequest("dry run is not simulated"))
		return
	}
	info, err := o.requests.NewRequestInfo(r)
	if err != nil {
		writeError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	if info.Subresource == "status" {
		r.URL.Path = strings.TrimSuffix(r.URL.Path, "/status")
	}
	if query := r.URL.Query(); query.Get("sendInitialEvents") == "true" {
		// All that there is comes first, however new it is; the handler leaves out what is
		// older than this.
		query.Del("resourceVersion")
		r.URL.RawQuery = query.Encode()
	}
	if !info.IsResourceRequest {
		o.handler.ServeHTTP(w, r)
		return
	}
	kind, err := o.mapper.KindFor(resourceOf(info))
	if err != nil {
		writeError(w, apierrors.NewNotFound(resourceOf(info).GroupResource(), info.Name))
		return
	}
	switch {
	case info.Verb == "patch":
		o.patch(w, r, info, kind)
	case info.Verb == "delete":
		o.delete(w, r, info, kind)
	case info.Verb == "create" && info.Subresource == "eviction":
		o.delete(w, r, info, kind) // No disruption budget stands in the way here.
	default:
		o.pass(w, r, info, kind)
	}
}

// pass hands a request to the handler, but for two forms of answers that it
// does not know.
func (o *overlay) pass(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, kind schema.GroupVersionKind) {
	isNode := kind == corev1.SchemeGroupVersion.WithKind("Node")
	switch {
	case info.Verb == "list" && kind == corev1.SchemeGroupVersion.WithKind("Namespace"):
		o.listNamespaces(w, r)
	case (info.Verb == "get" || info.Verb == "list") && isNode && wantsTable(r):
		o.nodeTable(w, r, info)
	case info.Verb == "watch" && wantsMetadata(r):
		o.handler.ServeHTTP(&metadataWriter{ResponseWriter: w}, r)
	default:
		o.handler.ServeHTTP(w, r)
	}
}

// listNamespaces lists all Namespaces at the revision of the cluster. No watch begins there.
func (o *overlay) listNamespaces(w http.ResponseWriter, r *http.Request) {
	list := &corev1.NamespaceList{}
	err := o.client.List(r.Context(), list)
	if err != nil {
		writeError(w, err)
		return
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		writeError(w, err)
		return
	}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	list.ResourceVersion = strconv.FormatInt(revision+o.raised.Load(), 10)
	writeJSON(w, http.StatusOK, list)
}

// delete deletes one object. Preconditions and propagation are not looked at.
func (o *overlay) delete(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, kind schema.GroupVersionKind) {
	object, err := o.make(kind)
	if err == nil {
		object.SetNamespace(info.Namespace)
		object.SetName(info.Name)
		err = o.client.Delete(r.Context(), object)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if kind.Kind == "Node" {
		o.collectPods(r.Context(), info.Name)
	}
	writeJSON(w, http.StatusOK, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Group: info.APIGroup, Kind: info.Resource, Name: info.Name},
	})
}

// collectPods is what the Pod garbage collector does once a node is gone.
func (o *overlay) collectPods(ctx context.Context, node string) {
	found := &corev1.Node{}
	if err := o.client.Get(ctx, client.ObjectKey{Name: node}, found); !apierrors.IsNotFound(err) {
		return
	}
	pods := &corev1.PodList{}
	if err := o.client.List(ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		return
	}
	for i := range pods.Items {
		_ = o.client.Delete(ctx, &pods.Items[i]) // It may be gone already.
	}
}

func resourceOf(info *request.RequestInfo) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
}

// writeError answers with the Status of an error.
func writeError(w http.ResponseWriter, err error) {
	var told apierrors.APIStatus
	if !errors.As(err, &told) {
		told = apierrors.NewInternalError(err)
	}
	status := told.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	writeJSON(w, int(status.Code), status)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // The client may be gone.
}
