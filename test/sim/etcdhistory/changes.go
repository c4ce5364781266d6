package etcdhistory

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// errNobody says that there is nobody to ask.
var errNobody = errors.New("no voter answers")

// change does a step on the real cluster once, by way of a node that answers,
// and returns etcd's refusal. What is done to processes is no matter of etcd.
func (r *real) change(ctx context.Context, step Step, via int) error {
	if via < 0 {
		return errNobody
	}
	switch step.Kind {
	case Join:
		return r.join(ctx, step, via)
	case Announce:
		_, err := r.addLearner(ctx, step.Node, via)
		return err
	case Promote:
		return r.at(ctx, via, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MemberPromote(ctx, r.ids[step.Node])
			return err
		})
	case Remove, Leave:
		return r.remove(ctx, r.ids[step.Node], via)
	case Lead:
		return r.lead(ctx, step.Node, via)
	case Stop, Silence, Start, Wipe:
	}
	return fmt.Errorf("step %s is none of etcd's", step.Kind)
}

// join is what Talos v1.13.9 does on a node without data
// (internal/app/machined/pkg/system/services/etcd.go, addMember).
func (r *real) join(ctx context.Context, step Step, via int) error {
	members, err := r.members(ctx, via)
	if err != nil {
		return err
	}
	for _, member := range members {
		if member.name == step.Name {
			if err := r.remove(ctx, member.id, via); err != nil {
				return err
			}
		}
	}
	id, err := r.addLearner(ctx, step.Node, via)
	if err != nil {
		return err
	}
	if members, err = r.members(ctx, via); err != nil {
		// Else the address is taken when this is tried again.
		return errors.Join(err, r.remove(ctx, id, via))
	}
	var initial []string
	for _, member := range members {
		if member.id == id {
			member.name = step.Name
		}
		initial = append(initial, member.name+"="+member.peerURL)
	}
	r.nodes[step.Node].name = step.Name
	return r.run(step.Node, "--initial-cluster-state=existing", "--initial-cluster="+strings.Join(initial, ","))
}

func (r *real) remove(ctx context.Context, id uint64, via int) error {
	return r.at(ctx, via, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, id)
		return err
	})
}

func (r *real) addLearner(ctx context.Context, number, via int) (id uint64, err error) {
	err = r.at(ctx, via, func(ctx context.Context, client *clientv3.Client) error {
		added, err := client.MemberAddAsLearner(ctx, []string{r.peerURL(number)})
		if err == nil {
			id = added.Member.ID
		}
		return err
	})
	return id, err
}

// lead moves the leadership, by way of the leader.
func (r *real) lead(ctx context.Context, number, via int) error {
	leader, err := r.leader(ctx, via)
	if err != nil {
		return err
	}
	for from, id := range r.ids {
		if id != leader {
			continue
		}
		return r.at(ctx, from, func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.MoveLeader(ctx, r.ids[number])
			return err
		})
	}
	return fmt.Errorf("the leader %x is no node", leader)
}

// leader is the ID of the leader, as a node knows it; 0 without one.
func (r *real) leader(ctx context.Context, via int) (leader uint64, err error) {
	err = r.at(ctx, via, func(ctx context.Context, client *clientv3.Client) error {
		status, err := client.Status(ctx, r.url(via, clientPort))
		if err == nil {
			leader = status.Leader
		}
		return err
	})
	return leader, err
}

// member is one member of a list.
type member struct {
	id      uint64
	name    string
	peerURL string
	learner bool
}

// String leaves the ID out: the model has others.
func (m member) String() string {
	kind := "voter"
	if m.learner {
		kind = "learner"
	}
	return fmt.Sprintf("%s %q at %s", kind, m.name, m.peerURL)
}

// members is the list that a node tells, with the consent of a quorum.
func (r *real) members(ctx context.Context, via int) (members []member, err error) {
	err = r.at(ctx, via, func(ctx context.Context, client *clientv3.Client) error {
		list, err := client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, found := range list.Members {
			members = append(members, member{id: found.ID, name: found.Name, peerURL: strings.Join(found.PeerURLs, ","), learner: found.IsLearner})
		}
		return nil
	})
	return members, err
}

// words are what etcd said.
func words(err error) string {
	var said rpctypes.EtcdError
	if errors.As(err, &said) {
		return said.Error()
	}
	if converted := rpctypes.Error(err); errors.As(converted, &said) {
		return said.Error()
	}
	return err.Error()
}
