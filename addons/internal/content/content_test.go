package content

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

func TestDataIsReadWhenItHasChanged(t *testing.T) {
	g, reads := NewWithT(t), 0
	meta := metav1.ObjectMeta{Namespace: "a", Name: "one"}
	name := types.NamespacedName{Namespace: "a", Name: "one"}
	secret := &corev1.Secret{ObjectMeta: meta, Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"k": []byte("1")}}
	cached := fake.NewClientBuilder().WithObjects(secret, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "c"}, BinaryData: map[string][]byte{"b": {0}}}).Build()
	live := interceptor.NewClient(cached, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
		reads++
		return c.Get(ctx, key, object, options...)
	}})
	reader := &Reader{Cached: cached, Live: live}
	for range 3 {
		read, err := reader.Get(t.Context(), addonv1.SecretValues, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.Type).To(Equal(corev1.SecretTypeBasicAuth))
		g.Expect(read.Data).To(HaveKeyWithValue("k", []byte("1")))
		read, err = reader.Get(t.Context(), addonv1.ConfigMapValues, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(read.Data).To(Equal(map[string][]byte{"k": []byte("c"), "b": {0}}))
	}
	g.Expect(reads).To(Equal(2))

	secret.Data["k"] = []byte("2")
	g.Expect(cached.Update(t.Context(), secret)).To(Succeed())
	read, err := reader.Get(t.Context(), addonv1.SecretValues, name)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.Data).To(HaveKeyWithValue("k", []byte("2")))

	g.Expect(cached.Delete(t.Context(), secret)).To(Succeed())
	_, err = reader.Get(t.Context(), addonv1.SecretValues, name)
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}

// TestOnlySoMuchIsKept, however many objects users refer to.
func TestOnlySoMuchIsKept(t *testing.T) {
	g, reader := NewWithT(t), &Reader{}
	name := func(i int) key { return key{addonv1.SecretValues, types.NamespacedName{Name: fmt.Sprint(i)}} }
	large := Content{Data: map[string][]byte{"k": make([]byte, 1<<20)}}
	for i := range 200 {
		reader.keep(name(i), large)
		reader.keep(name(i), large)
		g.Expect(len(reader.kept)).To(And(BeNumerically(">", 0), BeNumerically("<", 64)))
		_, known := reader.find(name(i))
		g.Expect(known).To(BeTrue())
	}
	for i := range 200 {
		reader.forget(name(i))
	}
	g.Expect(reader.size).To(BeZero())
}
