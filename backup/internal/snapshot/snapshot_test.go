package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// cluster is three control plane Machines with an etcd of three members, of which the first
// one leads.
type cluster struct {
	*WithT
	dialer   *fake.Dialer
	nodes    []*fake.Machine
	machines []*clusterv1.Machine
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{WithT: NewWithT(t), dialer: fake.NewDialer()}
	var members []talosclient.EtcdMember
	for id := range uint64(3) {
		members = append(members, talosclient.EtcdMember{ID: id + 1, Hostname: nameOf(id)})
	}
	for id := range uint64(3) {
		address := fmt.Sprintf("10.0.0.%d", id+1)
		node := fake.NewMachine(fake.State{
			Hostname: nameOf(id), Version: "v1.13.9", Members: members,
			EtcdStatus: talosclient.EtcdStatus{MemberID: id + 1, Leader: 1, RaftIndex: 100 + id, RaftAppliedIndex: 100 + id, Version: "3.6.12"},
		})
		node.OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewBufferString("of " + nameOf(id))), nil
		}
		c.nodes = append(c.nodes, c.dialer.Add(address, node))
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: nameOf(id)}}
		machine.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: address}}
		machine.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
		c.machines = append(c.machines, machine)
	}

	return c
}

func nameOf(id uint64) string { return []string{"a", "b", "c"}[id] }

// take takes a snapshot after so many failures, and returns it with all that it holds.
func (c *cluster) take(t *testing.T, failures int32) (*Snapshot, string, error) {
	t.Helper()
	taker := &Taker{Dialer: c.dialer, Patience: time.Second}
	taken, err := taker.Take(t.Context(), c.machines, Credentials{}, failures)
	if err != nil {
		return nil, "", err
	}
	data, err := io.ReadAll(taken)
	c.Expect(taken.Close()).To(Succeed())

	return taken, string(data), err
}

func TestASnapshotIsOfAVoterThatDoesNotLead(t *testing.T) {
	c := newCluster(t)
	taken, data, err := c.take(t, 0)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(data).To(Equal("of b"))
	c.Expect(taken.Machine.Name).To(Equal("b"))
	c.Expect(taken.Member).To(Equal("2"))
	c.Expect(taken.RaftIndex).To(Equal(uint64(101)))
	c.Expect(taken.TalosVersion).To(Equal("v1.13.9"))
	c.Expect(taken.EtcdVersion).To(Equal("3.6.12"))
}

func TestWhoGivesTheSnapshot(t *testing.T) {
	refuses := func(context.Context, *fake.Machine) (io.ReadCloser, error) { return nil, errors.New("refused") }
	for name, tt := range map[string]struct {
		change func(c *cluster)
		want   string
	}{
		"one that is behind comes after one that is not": {func(c *cluster) {
			c.nodes[1].Update(func(s *fake.State) { s.EtcdStatus.RaftAppliedIndex = 10 })
		}, "of c"},
		"one that does not answer does not": {func(c *cluster) { c.nodes[1].SetSilent(true) }, "of c"},
		"the leader does when nobody else can": {func(c *cluster) {
			c.nodes[1].SetSilent(true)
			c.nodes[2].OnSnapshot = refuses
		}, "of a"},
		"one that refuses with its first bytes is passed over": {func(c *cluster) {
			c.nodes[1].OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) {
				out, in := io.Pipe()
				return out, in.CloseWithError(errors.New("refused"))
			}
		}, "of c"},
		"one whose data is corrupt does not": {func(c *cluster) {
			for _, node := range c.nodes {
				node.Update(func(s *fake.State) { s.Alarms = []talosclient.EtcdAlarm{{MemberID: 2, Alarm: "CORRUPT"}} })
			}
		}, "of c"},
		"a learner does not": {func(c *cluster) {
			for _, node := range c.nodes {
				node.Update(func(s *fake.State) {
					s.Members = append([]talosclient.EtcdMember{}, s.Members...)
					s.Members[1].Learner = true
				})
			}
			c.nodes[1].Update(func(s *fake.State) { s.EtcdStatus.Learner = true })
		}, "of c"},
		"a Machine that is not provisioned is not asked": {func(c *cluster) {
			c.machines[1].Status.Initialization.InfrastructureProvisioned = nil
		}, "of c"},
		"one that became another member does not": {func(c *cluster) {
			c.nodes[1].OnSnapshot = nil
		}, "of c"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tt.change(c)
			_, data, err := c.take(t, 0)
			c.Expect(err).NotTo(HaveOccurred())
			c.Expect(data).To(Equal(tt.want))
		})
	}
}

// TestEachAttemptBeginsWithAnotherMember: what is wrong with one may show late in its snapshot. The
// leader comes last each time.
func TestEachAttemptBeginsWithAnotherMember(t *testing.T) {
	c := newCluster(t)
	refuses := func(context.Context, *fake.Machine) (io.ReadCloser, error) { return nil, errors.New("refused") }
	for failures, want := range []string{"of b", "of c", "of b", "of c"} {
		_, data, err := c.take(t, int32(failures))
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(data).To(Equal(want))
	}
	c.nodes[2].OnSnapshot = refuses
	_, data, err := c.take(t, 1)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(data).To(Equal("of b"))
	c.nodes[1].SetSilent(true)
	_, data, err = c.take(t, 3)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(data).To(Equal("of a"))
	c.nodes[0].OnSnapshot = refuses
	_, _, err = c.take(t, math.MaxInt32)
	c.Expect(err).To(MatchError(And(ContainSubstring("Machine c: refused"), ContainSubstring("Machine a: refused"))))
}

// TestTheMemberIsAskedWhoItIs: between the look and the snapshot, the node at the address
// may have become another one.
func TestTheMemberIsAskedWhoItIs(t *testing.T) {
	c := newCluster(t)
	taker, seen := &Taker{Dialer: c.dialer}, newCluster(t)
	members, err := taker.look(t.Context(), seen.machines[1:2], talosclient.Credentials{})
	c.Expect(err).NotTo(HaveOccurred())
	c.nodes[1].Update(func(s *fake.State) { s.EtcdStatus.MemberID = 7 })
	_, err = taker.begin(t.Context(), members[0], talosclient.Credentials{})
	c.Expect(err).To(MatchError(talosclient.ErrOtherNode))
}

func TestWithoutAQuorumThereIsNoSnapshot(t *testing.T) {
	c := newCluster(t)
	c.nodes[1].SetSilent(true)
	c.nodes[2].SetSilent(true)
	_, _, err := c.take(t, 0)
	c.Expect(err).To(MatchError(ErrNoQuorum))
	c.Expect(err).To(MatchError(ContainSubstring("asking Machine b: ")), "and who does not answer is named")
	c.machines = nil
	_, _, err = c.take(t, 0)
	c.Expect(err).To(MatchError(ErrNoQuorum))
}

// TestANodeThatFallsSilentIsNotWaitedFor: neither before the first bytes nor after.
func TestANodeThatFallsSilentIsNotWaitedFor(t *testing.T) {
	hangs := func(ctx context.Context, _ *fake.Machine) (io.ReadCloser, error) {
		out, in := io.Pipe()
		context.AfterFunc(ctx, func() { _ = in.CloseWithError(ctx.Err()) })
		return out, nil
	}
	c := newCluster(t)
	c.nodes[1].OnSnapshot = hangs
	_, data, err := c.take(t, 0)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(data).To(Equal("of c"))

	c.nodes[1].OnSnapshot = func(ctx context.Context, m *fake.Machine) (io.ReadCloser, error) {
		silent, err := hangs(ctx, m)
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewBufferString("the beginning"), silent), silent}, err
	}
	_, data, err = c.take(t, 0)
	c.Expect(data).To(Equal("the beginning"))
	c.Expect(err).To(MatchError(errSilent))
}
