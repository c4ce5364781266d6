package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patch changes one object. What is applied on the server is merged into what is there:
// nobody knows whose the fields are, none goes, and what is missing is not made.
func (o *overlay) patch(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, kind schema.GroupVersionKind) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		writeError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		writeError(w, apierrors.NewBadRequest(err.Error()))
		return
	}
	var patched client.Object
	key := client.ObjectKey{Namespace: info.Namespace, Name: info.Name}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		patched, err = o.patchOnce(r.Context(), kind, key, types.PatchType(mediaType), body)
		return err
	})
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, patched)
}

func (o *overlay) patchOnce(ctx context.Context, kind schema.GroupVersionKind, key client.ObjectKey, patchType types.PatchType, patch []byte) (client.Object, error) {
	present, err := o.make(kind)
	if err != nil {
		return nil, err
	}
	if err := o.client.Get(ctx, key, present); err != nil {
		return nil, err
	}
	before, err := json.Marshal(present)
	if err != nil {
		return nil, fmt.Errorf("encoding the %s: %w", kind.Kind, err)
	}
	after, err := apply(before, patch, patchType, present)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	changed, err := o.make(kind)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(after, changed); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if changed.GetName() != key.Name || changed.GetNamespace() != key.Namespace {
		return nil, apierrors.NewBadRequest("a patch cannot rename")
	}
	return changed, o.client.Update(ctx, changed)
}

// apply applies a patch of any type to an encoded object.
func apply(before, patch []byte, patchType types.PatchType, like client.Object) ([]byte, error) {
	switch patchType {
	case types.StrategicMergePatchType, types.ApplyYAMLPatchType:
		return strategicpatch.StrategicMergePatch(before, patch, like)
	case types.MergePatchType:
		return jsonpatch.MergePatch(before, patch)
	case types.JSONPatchType:
		decoded, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, fmt.Errorf("decoding the patch: %w", err)
		}
		return decoded.Apply(before)
	default:
		return nil, fmt.Errorf("patches of type %s are not simulated", patchType)
	}
}

func (o *overlay) make(kind schema.GroupVersionKind) (client.Object, error) {
	made, err := o.scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("making a %s: %w", kind.Kind, err)
	}
	object, ok := made.(client.Object)
	if !ok {
		return nil, fmt.Errorf("making a %s: it is no object", kind.Kind)
	}
	return object, nil
}
