package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// Node is what Look asks of a node.
type Node interface {
	EtcdMembers(ctx context.Context) ([]Member, error)
	EtcdStatus(ctx context.Context) (talosclient.EtcdStatus, error)
	EtcdAlarms(ctx context.Context) ([]Alarm, error)
}

// Look asks a node about etcd. It fails when the node's etcd does not answer, and
// when its member is a learner, which tells no members.
func Look(ctx context.Context, node Node) (*View, error) {
	members, err := node.EtcdMembers(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the etcd members: %w", err)
	}
	status, err := node.EtcdStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the etcd status: %w", err)
	}
	var alarms []Alarm
	if slices.ContainsFunc(status.Errors, isAlarm) {
		if alarms, err = node.EtcdAlarms(ctx); err != nil {
			return nil, fmt.Errorf("reading the etcd alarms: %w", err)
		}
	}

	return &View{
		Self: status.MemberID, Leader: status.Leader, Learner: status.Learner, Lag: status.RaftIndex - min(status.RaftIndex, status.RaftAppliedIndex),
		DBSizeBytes: status.DBSizeBytes, Errors: slices.DeleteFunc(slices.Clone(status.Errors), isAlarm),
		Members: members, Alarms: alarms,
	}, nil
}

// isAlarm reports whether what a member complains about is an alarm: its status has
// the alarms of all members among its errors (etcd v3.6,
// server/etcdserver/api/v3rpc/maintenance.go, Status).
func isAlarm(problem string) bool {
	return strings.Contains(problem, "alarm:")
}
