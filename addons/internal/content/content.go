// Package content reads the Secrets and ConfigMaps that users refer to. The cache of a
// manager knows when they change, and keeps none of their data; what was read is kept until
// then.
package content

import (
	"context"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// maxKept is how many bytes of objects are kept: some users may have very many large ones.
const maxKept = 64 << 20

// Content is what an object has.
type Content struct {
	// Type is that of a Secret.
	Type corev1.SecretType
	Data map[string][]byte
	// Version changes with the object.
	Version string
}

// Reader reads objects. Cached and Live are required.
type Reader struct {
	// Cached knows the versions of objects, and Live their data.
	Cached, Live client.Reader

	mu   sync.Mutex
	kept map[key]Content
	// size is that of all that is kept.
	size int
}

type key struct {
	kind addonv1.ValuesReferenceKind
	name types.NamespacedName
}

// Get reads an object. It returns the API server's error when there is none.
func (r *Reader) Get(ctx context.Context, kind addonv1.ValuesReferenceKind, name types.NamespacedName) (Content, error) {
	cached := objectOf(kind)
	if err := r.Cached.Get(ctx, name, cached); err != nil {
		r.forget(key{kind, name})
		return Content{}, fmt.Errorf("reading %s %s: %w", kind, name.Name, err)
	}
	if found, known := r.find(key{kind, name}); known && found.Version == cached.GetResourceVersion() {
		return found, nil
	}
	live := objectOf(kind)
	if err := r.Live.Get(ctx, name, live); err != nil {
		return Content{}, fmt.Errorf("reading %s %s: %w", kind, name.Name, err)
	}
	read := contentOf(live)
	r.keep(key{kind, name}, read)

	return read, nil
}

func objectOf(kind addonv1.ValuesReferenceKind) client.Object {
	if kind == addonv1.ConfigMapValues {
		return &corev1.ConfigMap{}
	}

	return &corev1.Secret{}
}

func contentOf(object client.Object) Content {
	read := Content{Version: object.GetResourceVersion()}
	switch object := object.(type) {
	case *corev1.Secret:
		read.Type, read.Data = object.Type, object.Data
	case *corev1.ConfigMap:
		read.Data = map[string][]byte{}
		for name, text := range object.Data {
			read.Data[name] = []byte(text)
		}
		maps.Copy(read.Data, object.BinaryData)
	}

	return read
}

func (r *Reader) find(of key) (Content, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, known := r.kept[of]

	return found, known
}

func (r *Reader) keep(of key, read Content) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(of)
	size := sizeOf(read)
	if r.kept == nil || r.size+size > maxKept {
		r.kept, r.size = map[key]Content{}, 0
	}
	r.kept[of] = read
	r.size += size
}

func (r *Reader) forget(of key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(of)
}

// remove removes what is kept of an object, if anything is.
func (r *Reader) remove(of key) {
	if former, known := r.kept[of]; known {
		r.size -= sizeOf(former)
		delete(r.kept, of)
	}
}

// perObject is how many bytes an object counts beside its data.
const perObject = 512

func sizeOf(read Content) int {
	size := perObject
	for name, data := range read.Data {
		size += len(name) + len(data)
	}

	return size
}
