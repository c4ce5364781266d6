package secretcache_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
)

const kept = "-talos"

// counted counts the reads of single objects.
type counted struct {
	client.Reader

	reads int
}

func (c *counted) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	c.reads++
	return c.Reader.Get(ctx, key, into, opts...)
}

// noWatchList: the fake client's watch does not begin with what is there already.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// newCached returns a client that reads Secrets of a management cluster from a cache as
// the managers have it: a real informer with the transform.
func newCached(t *testing.T, cluster client.WithWatch, live client.Reader) client.Client {
	t.Helper()
	g, ctx, scheme := NewWithT(t), t.Context(), runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	mapper := testrestmapper.TestOnlyStaticRESTMapper(scheme)
	informers, err := cache.New(&rest.Config{}, cache.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: http.DefaultClient,
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Transform: secretcache.KeepData([]string{kept})}},
		NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
					found := &corev1.SecretList{}
					return found, cluster.List(ctx, found)
				},
				WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
					return cluster.Watch(ctx, &corev1.SecretList{})
				},
			}, noWatchList{}), object, resync, indexers)
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	go func() { _ = informers.Start(ctx) }()
	g.Eventually(func() error {
		_, err := informers.GetInformer(ctx, &corev1.Secret{})
		return err
	}).Should(Succeed())
	g.Expect(informers.WaitForCacheSync(ctx)).To(BeTrue())
	cached, err := client.New(&rest.Config{}, client.Options{
		Scheme: scheme, Mapper: mapper, HTTPClient: http.DefaultClient, Cache: &client.CacheOptions{Reader: informers},
	})
	g.Expect(err).NotTo(HaveOccurred())

	return secretcache.NewClient(cached, live)
}

func newSecret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"set": name}, Annotations: map[string]string{"a": "b"}},
		Type:       "t", Data: data,
	}
}

// TestSecretDataIsNeverSilentlyEmpty: what is read through the cache is what the
// management cluster has, whatever the cache keeps of it.
func TestSecretDataIsNeverSilentlyEmpty(t *testing.T) {
	data := map[string][]byte{"k": []byte("v")}
	for name, c := range map[string]struct {
		secret   *corev1.Secret
		opts     []client.GetOption
		data     map[string][]byte
		reads    int
		listFail bool
	}{
		"data that the cache keeps is read from there":       {secret: newSecret("one-talos", data), data: data},
		"data that the cache does not keep is read live":     {secret: newSecret("values", data), data: data, reads: 1, listFail: true},
		"a Secret that has no data is read from the cache":   {secret: newSecret("values", nil)},
		"the metadata is read from the cache":                {secret: newSecret("values", data), opts: []client.GetOption{secretcache.MetadataOnly{}}, listFail: true},
		"the metadata is that alone, also of data in memory": {secret: newSecret("one-talos", data), opts: []client.GetOption{secretcache.MetadataOnly{}}},
	} {
		t.Run(name, func(t *testing.T) {
			g, ctx := NewWithT(t), t.Context()
			cluster := fake.NewClientBuilder().WithObjects(c.secret, newSecret("other-talos", data)).Build()
			live := &counted{Reader: cluster}
			cached := newCached(t, cluster, live)

			found := &corev1.Secret{}
			g.Expect(cached.Get(ctx, client.ObjectKeyFromObject(c.secret), found, c.opts...)).To(Succeed())
			g.Expect(found.Data).To(Equal(c.data))
			g.Expect(live.reads).To(Equal(c.reads))
			g.Expect(found.Annotations).To(Equal(c.secret.Annotations), "what marks it in the cache stays there")
			g.Expect(found.Type).To(Equal(c.secret.Type))
			g.Expect(found.UID).To(Equal(c.secret.UID))

			err := cached.List(ctx, &corev1.SecretList{}, client.InNamespace("ns"))
			if c.listFail {
				g.Expect(err).To(MatchError(ContainSubstring("the data of Secret ns/" + c.secret.Name + " is not kept there")))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
			others := &corev1.SecretList{}
			g.Expect(cached.List(ctx, others, client.InNamespace("ns"), client.MatchingLabels{"set": "other-talos"})).To(Succeed())
			g.Expect(others.Items).To(HaveLen(1))
			g.Expect(others.Items[0].Data).To(Equal(data))
		})
	}
}

// TestACacheFollowsASecretWhoseDataItDrops: also after changes, and what is gone is not
// found.
func TestACacheFollowsASecretWhoseDataItDrops(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	secret := newSecret("values", map[string][]byte{"k": []byte("v")})
	cluster := fake.NewClientBuilder().WithObjects(secret).Build()
	cached := newCached(t, cluster, cluster)
	secret.Data["k"] = []byte("w")
	secret.Annotations["a"] = "c"
	g.Expect(cluster.Update(ctx, secret)).To(Succeed())
	found := &corev1.Secret{}
	g.Expect(cached.Get(ctx, client.ObjectKeyFromObject(secret), found)).To(Succeed())
	g.Expect(found.Data).To(HaveKeyWithValue("k", []byte("w")))
	g.Eventually(func(g Gomega) {
		g.Expect(cached.Get(ctx, client.ObjectKeyFromObject(secret), found, secretcache.MetadataOnly{})).To(Succeed())
		g.Expect(found.Annotations).To(Equal(map[string]string{"a": "c"}))
	}).Should(Succeed())

	g.Expect(cluster.Delete(ctx, secret)).To(Succeed())
	g.Expect(apierrors.IsNotFound(cached.Get(ctx, client.ObjectKeyFromObject(secret), found))).To(BeTrue())
	g.Expect(found.Data).To(BeEmpty())
}

// TestTheLiveReadBeginsWithNothing: an answer is decoded on top of what is there, which
// were the marked metadata.
func TestTheLiveReadBeginsWithNothing(t *testing.T) {
	g := NewWithT(t)
	transformed, err := secretcache.KeepData(nil)(newSecret("values", map[string][]byte{"k": nil}))
	g.Expect(err).NotTo(HaveOccurred())
	again, err := secretcache.KeepData(nil)(transformed)
	g.Expect(err).NotTo(HaveOccurred())
	stripped := again.(*corev1.Secret) //nolint:forcetypeassert // The type is part of what is tested.
	cached, live := fake.NewClientBuilder().WithObjects(stripped).Build(), expectsEmpty{g: g}
	g.Expect(secretcache.NewClient(cached, live).Get(t.Context(), client.ObjectKeyFromObject(stripped), &corev1.Secret{})).To(MatchError(errFailing))
}

type expectsEmpty struct {
	client.Reader

	g Gomega
}

func (e expectsEmpty) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	e.g.Expect(into).To(Equal(&corev1.Secret{}))
	return errFailing
}

func TestAReaderLooksLiveForWhatTheCacheLacks(t *testing.T) {
	g := NewWithT(t)
	named := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	}
	get := func(reader client.Reader, name string) error {
		return reader.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &corev1.Secret{})
	}
	cached, live := fake.NewClientBuilder().WithObjects(named("a")).Build(), fake.NewClientBuilder().WithObjects(named("b")).Build()
	g.Expect(get(secretcache.NewReader(cached, failing{}), "a")).To(Succeed(), "nobody is asked for what is there")
	g.Expect(get(secretcache.NewReader(cached, live), "b")).To(Succeed())
	g.Expect(apierrors.IsNotFound(get(secretcache.NewReader(cached, live), "c"))).To(BeTrue())
	g.Expect(get(secretcache.NewReader(failing{}, live), "b")).To(MatchError(errFailing))
}

// failing is a reader that does not answer.
type failing struct{ client.Reader }

var errFailing = errors.New("no answer")

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errFailing
}
