package talossim

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxDatabase is how large a database may be of which a machine keeps more than its
// checksum.
const maxDatabase = 4 << 20

// Recovery is a database that was sent to a machine, to restore etcd from.
type Recovery struct {
	// Bytes is its size, and SHA256 its checksum.
	Bytes  int64
	SHA256 [sha256.Size]byte
	// Data is the database itself; nil when it is larger than 4 MiB.
	Data []byte
	// Restored reports whether etcd was restored from it: Talos has deleted it then.
	Restored bool
}

// Recovered is the database that was sent to the machine last; nil when there is none
// since it was wiped.
func (m *Machine) Recovered() *Recovery {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	if m.disk.database == nil {
		return nil
	}
	found := *m.disk.database
	found.Data = bytes.Clone(found.Data)
	return &found
}

// EtcdRecover keeps a database on EPHEMERAL for a bootstrap that restores etcd from it, in
// place of an older one. As in Talos it does not look at it, nor at whether etcd runs, and
// what has not come to its end is not kept
// (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go, EtcdRecover).
// Talos looks whether EPHEMERAL is there before it looks what kind of node it is; a
// worker here is taken to have it.
func (a *api) EtcdRecover(stream machine.MachineService_EtcdRecoverServer) error {
	m := a.boot.machine
	var early bool
	a.boot.sim.update(func() {
		if early = a.settings != nil && a.settings.controlPlane && !a.boot.cri; !early {
			m.disk.database = nil
		}
	})
	if early {
		return status.Error(codes.FailedPrecondition, "etcd service is not ready for recovery yet")
	}
	if err := a.controlPlane("etcd recover"); err != nil {
		return err
	}
	taken, err := receiveDatabase(stream)
	if err != nil {
		return err
	}
	a.boot.sim.update(func() {
		if m.present != a.boot {
			err = status.Error(codes.Unavailable, "the machine has gone down")
			return
		}
		m.disk.database = taken
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&machine.EtcdRecoverResponse{Messages: []*machine.EtcdRecover{{}}})
}

func receiveDatabase(stream machine.MachineService_EtcdRecoverServer) (*Recovery, error) {
	taken, sum := &Recovery{}, sha256.New()
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			taken.SHA256 = [sha256.Size]byte(sum.Sum(nil))
			return taken, nil
		}
		if err != nil {
			return nil, fmt.Errorf("receiving a database: %w", err)
		}
		_, _ = sum.Write(part.GetBytes())
		if taken.Bytes += int64(len(part.GetBytes())); taken.Bytes > maxDatabase {
			taken.Data = nil
			continue
		}
		taken.Data = append(taken.Data, part.GetBytes()...)
	}
}

// unrestorable is why etcd's service cannot restore the database that was sent, in Talos'
// words (internal/app/machined/pkg/system/services/etcd.go, recoverFromSnapshot, and
// internal/app/machined/pkg/system/service_runner.go, Run); empty when it can. Talossim
// does not look into a database. The lock is held.
func (m *Machine) unrestorable() string {
	const failed = "Failed to run pre stage: error verifying snapshot: "
	database := m.disk.database
	switch {
	case database == nil || database.Restored:
		return failed + "stat " + constants.EtcdRecoverySnapshotPath + ": no such file or directory"
	case database.Bytes == 0:
		return failed + "write " + constants.EtcdRecoverySnapshotPath + ": bad file descriptor"
	case m.faults.RecoverFails:
		return failed + "snapshot file integrity check failed. 1 errors found.\npage 7: unreachable unfreed"
	}
	return ""
}
