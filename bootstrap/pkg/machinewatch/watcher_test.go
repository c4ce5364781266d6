package machinewatch

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

var key = client.ObjectKey{Namespace: "ns", Name: "m"}

func object(key client.ObjectKey) client.Object {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
}

func TestAChangeOfStageWakesTheObject(t *testing.T) {
	g := NewWithT(t)
	dialer := talosfake.NewDialer()
	booting := talosclient.MachineStatus{Stage: talosclient.StageBooting}
	machine := dialer.Add("192.0.2.1", talosfake.NewMachine(talosfake.State{Status: booting}))
	f := New(t.Context(), dialer, object)
	f.Watch(key, "192.0.2.1", talosclient.Credentials{}, booting)
	f.Watch(key, "192.0.2.1", talosclient.Credentials{}, booting)
	g.Expect(f.Watching(key)).To(BeTrue())

	g.Consistently(f.Events()).WithTimeout(50*time.Millisecond).ShouldNot(Receive(), "what is known wakes nobody")
	running := func() { machine.Update(func(s *talosfake.State) { s.Status.Stage = talosclient.StageRunning }) }
	g.Eventually(func(g Gomega) {
		running()
		g.Expect(f.Events()).To(Receive(HaveField("Object.GetName()", "m")))
	}).Should(Succeed())
	g.Consistently(f.Events()).WithTimeout(50*time.Millisecond).ShouldNot(Receive(), "there is one watch")

	f.Stop(key)
	g.Expect(f.Watching(key)).To(BeFalse())
	running()
	g.Consistently(f.Events()).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
}

func TestTheEndOfAWatchWakesTheObject(t *testing.T) {
	g := NewWithT(t)
	f := New(t.Context(), talosfake.NewDialer(), object)
	f.Watch(key, "192.0.2.1", talosclient.Credentials{}, talosclient.MachineStatus{})
	g.Eventually(f.Events()).Should(Receive(HaveField("Object.GetName()", "m")))
	g.Expect(f.Watching(key)).To(BeFalse(), "the next reconcile watches again")
}

func TestAnotherClusterIsAnotherWatch(t *testing.T) {
	g := NewWithT(t)
	dialer := talosfake.NewDialer()
	machine := dialer.Add("192.0.2.1", talosfake.NewMachine(talosfake.State{}))
	f := New(t.Context(), dialer, object)
	f.Watch(key, "192.0.2.1", talosclient.Credentials{CA: []byte("one")}, talosclient.MachineStatus{})
	f.Watch(key, "192.0.2.1", talosclient.Credentials{CA: []byte("two")}, talosclient.MachineStatus{})
	g.Eventually(func(g Gomega) {
		machine.Update(func(s *talosfake.State) { s.Status.Stage = talosclient.StageRunning })
		g.Expect(f.Events()).To(Receive())
	}).Should(Succeed())
	g.Expect(f.Watching(key)).To(BeTrue())
}

func TestTheLatestStatusIsKnownWhileAMachineIsWatched(t *testing.T) {
	g := NewWithT(t)
	dialer := talosfake.NewDialer()
	waiting := talosclient.MachineStatus{Stage: talosclient.StageMaintenance}
	machine := dialer.Add("192.0.2.1", talosfake.NewMachine(talosfake.State{Maintenance: true, Fingerprint: "boot-1", Status: waiting}))
	f := New(t.Context(), dialer, object)
	f.WatchMaintenance(key, "192.0.2.1", "boot-1", waiting)
	latest, known := f.Latest(key)
	g.Expect(known).To(BeTrue())
	g.Expect(latest).To(Equal(waiting))

	g.Eventually(func(g Gomega) {
		machine.Update(func(s *talosfake.State) { s.Status.Stage = talosclient.StageInstalling })
		g.Expect(f.Events()).To(Receive())
		latest, _ := f.Latest(key)
		g.Expect(latest.Stage).To(Equal(talosclient.StageInstalling))
	}).Should(Succeed())

	machine.SetSilent(true)
	g.Eventually(func() bool { return f.Watching(key) }).Should(BeFalse())
	_, known = f.Latest(key)
	g.Expect(known).To(BeFalse())
}

func TestAnotherBootIsAnotherWatch(t *testing.T) {
	g := NewWithT(t)
	dialer := talosfake.NewDialer()
	dialer.Add("192.0.2.1", talosfake.NewMachine(talosfake.State{Maintenance: true, Fingerprint: "boot-2"}))
	f := New(t.Context(), dialer, object)
	f.WatchMaintenance(key, "192.0.2.1", "boot-1", talosclient.MachineStatus{})
	g.Eventually(f.Events()).Should(Receive(), "that boot is over")
	f.WatchMaintenance(key, "192.0.2.1", "boot-2", talosclient.MachineStatus{})
	g.Consistently(f.Events()).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
	g.Expect(f.Watching(key)).To(BeTrue())
}

// shaky breaks each watch once it has told something, until it has enough of it.
type shaky struct {
	talosclient.Node
	breaks       int
	certificates []string
}

func (s *shaky) Fingerprint() string {
	if len(s.certificates) == 0 {
		return "boot-1"
	}
	certificate := s.certificates[0]
	s.certificates = s.certificates[1:]

	return certificate
}

func (s *shaky) Close() error { return nil }

func (s *shaky) WatchMachineStatus(ctx context.Context, fn func(talosclient.MachineStatus)) error {
	fn(talosclient.MachineStatus{Stage: talosclient.StageRunning})
	s.breaks--
	if s.breaks >= 0 {
		return errors.New("too many pings")
	}
	<-ctx.Done()

	return ctx.Err()
}

type shakyDialer struct {
	talosclient.Dialer
	node *shaky
}

func (d shakyDialer) Secure(context.Context, string, talosclient.Credentials) (talosclient.Node, error) {
	return d.node, nil
}

func TestABrokenConnection(t *testing.T) {
	running := talosclient.MachineStatus{Stage: talosclient.StageRunning}
	t.Run("to the same machine wakes nobody", func(t *testing.T) {
		g := NewWithT(t)
		f := New(t.Context(), shakyDialer{node: &shaky{breaks: maxConnections - 1}}, object)
		f.Watch(key, "192.0.2.1", talosclient.Credentials{}, running)
		g.Consistently(f.Events()).WithTimeout(50 * time.Millisecond).ShouldNot(Receive())
		g.Expect(f.Watching(key)).To(BeTrue())
	})
	t.Run("that breaks again and again is the end", func(t *testing.T) {
		g := NewWithT(t)
		f := New(t.Context(), shakyDialer{node: &shaky{breaks: maxConnections}}, object)
		f.Watch(key, "192.0.2.1", talosclient.Credentials{}, running)
		g.Eventually(f.Events()).Should(Receive())
		g.Expect(f.Watching(key)).To(BeFalse())
	})
	t.Run("that leads to another machine is the end", func(t *testing.T) {
		g := NewWithT(t)
		f := New(t.Context(), shakyDialer{node: &shaky{breaks: 1, certificates: []string{"boot-1", "boot-1", "boot-2"}}}, object)
		f.Watch(key, "192.0.2.1", talosclient.Credentials{}, running)
		g.Eventually(f.Events()).Should(Receive())
		g.Expect(f.Watching(key)).To(BeFalse())
	})
}
