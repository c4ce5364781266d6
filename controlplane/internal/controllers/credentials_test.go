package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

func TestCredentialsOfClustersThatAreGoneAreForgotten(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1<<31, 0))
	bundle, err := secrets.NewBundle(clock.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	store, one, two := newCredentialStore(clock), client.ObjectKey{Name: "one"}, client.ObjectKey{Name: "two"}
	ask := func(cluster client.ObjectKey) []byte {
		creds, err := store.reader(cluster, bundle)
		g.Expect(err).NotTo(HaveOccurred())

		return creds.Cert
	}

	first := ask(one)
	clock.SetTime(clock.Now().Add(20 * time.Minute))
	ask(two)
	g.Expect(ask(one)).To(Equal(first))
	g.Expect(store.stored).To(HaveLen(2))
	clock.SetTime(clock.Now().Add(10 * time.Minute))
	g.Expect(ask(one)).NotTo(Equal(first), "it was due")
	g.Expect(store.stored).To(HaveLen(2))
	clock.SetTime(clock.Now().Add(20 * time.Minute))
	ask(one)
	clock.SetTime(clock.Now().Add(10 * time.Minute))
	ask(one)
	g.Expect(store.stored).To(HaveLen(1), "nobody has asked for the other cluster for half an hour")
}
