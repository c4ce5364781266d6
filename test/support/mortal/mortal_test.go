package mortal

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
}

func TestAManagerDiesAtItsNthEffect(t *testing.T) {
	g := NewWithT(t)
	outside := fake.NewClientBuilder().Build()
	life := &Life{}
	manager := life.Client(outside)
	g.Expect(manager.Create(t.Context(), secret("a"))).To(Succeed())

	life.DieAt(2)
	g.Expect(manager.Create(t.Context(), secret("b"))).To(Succeed())
	g.Expect(outside.Create(t.Context(), secret("by others"))).To(Succeed())
	g.Expect(life.IsOver()).To(BeFalse())
	g.Expect(manager.Create(t.Context(), secret("c"))).To(MatchError(ErrDead))
	g.Expect(life.IsOver()).To(BeTrue())
	g.Expect(manager.Get(t.Context(), client.ObjectKeyFromObject(secret("a")), &corev1.Secret{})).To(MatchError(ErrDead))
	g.Expect(manager.List(t.Context(), &corev1.SecretList{})).To(MatchError(ErrDead))
	g.Expect(manager.Status().Patch(t.Context(), secret("a"), client.MergeFrom(secret("a")))).To(MatchError(ErrDead))
	g.Expect(life.Effects()).To(Equal(3), "a dead manager has no effects")

	life.Restart()
	g.Expect(manager.Create(t.Context(), secret("c"))).To(Succeed())
	list := &corev1.SecretList{}
	g.Expect(outside.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(4))
}

func TestACallToAMachineMayBeTheLast(t *testing.T) {
	for at, want := range map[int]struct {
		called bool
		err    error
	}{
		0: {true, errRefused},
		1: {false, ErrDead},
		2: {true, ErrDead},
	} {
		g := NewWithT(t)
		life, called := &Life{}, false
		life.DieAt(at)
		g.Expect(life.Around(func() error { called = true; return errRefused })).To(MatchError(want.err))
		g.Expect(called).To(Equal(want.called))
	}
}

var errRefused = errors.New("the machine has refused it")
