package secrets

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var (
	clusterOne = client.ObjectKey{Namespace: "ns", Name: "one"}
	clusterTwo = client.ObjectKey{Namespace: "ns", Name: "two"}
)

func TestClientCertificatesOfClustersThatAreGoneAreForgotten(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1<<31, 0))
	bundle, err := NewBundle(clock.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	kept := NewClientCertificates(clock)
	ask := func(cluster client.ObjectKey) []byte {
		creds, err := kept.For(cluster, bundle, RoleReader)
		g.Expect(err).NotTo(HaveOccurred())

		return creds.Cert
	}

	first := ask(clusterOne)
	clock.SetTime(clock.Now().Add(20 * time.Minute))
	ask(clusterTwo)
	g.Expect(ask(clusterOne)).To(Equal(first))
	g.Expect(kept.kept).To(HaveLen(2))
	clock.SetTime(clock.Now().Add(10 * time.Minute))
	g.Expect(ask(clusterOne)).NotTo(Equal(first), "it was due")
	g.Expect(kept.kept).To(HaveLen(2))
	clock.SetTime(clock.Now().Add(20 * time.Minute))
	ask(clusterOne)
	clock.SetTime(clock.Now().Add(10 * time.Minute))
	ask(clusterOne)
	g.Expect(kept.kept).To(HaveLen(1), "nobody has asked for the other cluster for half an hour")
}

// TestClientCertificatesOfAClockThatWasAheadAreNotKept: nodes do not take them yet.
func TestClientCertificatesOfAClockThatWasAheadAreNotKept(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1<<31, 0))
	bundle, err := NewBundle(clock.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	kept := NewClientCertificates(clock)
	for _, step := range []time.Duration{3 * time.Hour, -2 * time.Hour} {
		clock.SetTime(clock.Now().Add(step))
		creds, err := kept.For(clusterOne, bundle, RoleReader)
		g.Expect(err).NotTo(HaveOccurred())
		notBefore, notAfter, err := Validity(creds)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(notBefore).To(BeTemporally("<", clock.Now()))
		g.Expect(notAfter).To(BeTemporally(">=", clock.Now().Add(certificateLife/2)))
	}
	g.Expect(kept.kept).To(HaveLen(1))
}

func TestClientCertificatesAreOfOneClusterRoleAndBundle(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(time.Unix(1<<31, 0))
	bundle, err := NewBundle(clock.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	another, err := NewBundle(clock.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	kept := NewClientCertificates(clock)
	ask := func(cluster client.ObjectKey, bundle *Bundle, role string) string {
		creds, err := kept.For(cluster, bundle, role)
		g.Expect(err).NotTo(HaveOccurred())

		return string(creds.Cert)
	}

	reader, admin := ask(clusterOne, bundle, RoleReader), ask(clusterOne, bundle, RoleAdmin)
	g.Expect(admin).NotTo(Equal(reader), "a reader never gets what may change a node")
	g.Expect(ask(clusterOne, bundle, RoleAdmin)).To(Equal(admin))
	g.Expect(ask(clusterTwo, bundle, RoleReader)).NotTo(Equal(reader))
	other := ask(clusterOne, another, RoleReader)
	g.Expect(other).NotTo(Equal(reader), "the keys of the cluster have changed")

	kept.Forget(clusterOne)
	g.Expect(kept.kept).To(HaveLen(1))
	g.Expect(ask(clusterOne, another, RoleReader)).NotTo(Equal(other))
	_, err = kept.For(clusterOne, another, "os:nobody")
	g.Expect(err).To(MatchError(ContainSubstring("os:nobody")))
}
