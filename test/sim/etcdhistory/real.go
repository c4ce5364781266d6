package etcdhistory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/capi-talos/capi-talos/test/stack/process"
)

const (
	peerPort, clientPort = 2380, 2379
	// heartbeat and election are etcd's settings: slow enough for a busy machine.
	heartbeat, election = 100 * time.Millisecond, 1200 * time.Millisecond
	// callTimeout is how long one call may take.
	callTimeout = 5 * time.Second
)

// real is a cluster of etcd processes.
type real struct {
	binary string
	dir    string
	// prefix are the first three bytes of the addresses of its nodes.
	prefix string
	nodes  [maxNodes]*node
	// ids are the members with the addresses of the nodes, the last ones that they
	// were.
	ids map[int]uint64
}

// node is one node of it.
type node struct {
	number  int
	name    string
	process *process.Process
	frozen  bool
	trimmed bool

	mu     sync.Mutex
	client *clientv3.Client
}

func newReal(binary, dir, prefix string) *real {
	r := &real{binary: binary, dir: dir, prefix: prefix, ids: map[int]uint64{}}
	for number := range r.nodes {
		r.nodes[number] = &node{number: number, name: nodeName(number)}
	}
	return r
}

func (r *real) url(number, port int) string {
	return fmt.Sprintf("http://%s.%d:%d", r.prefix, number+1, port)
}

func (r *real) peerURL(number int) string { return r.url(number, peerPort) }

func (r *real) data(number int) string { return filepath.Join(r.dir, nodeName(number)) }

// boot starts a cluster of that many voters.
func (r *real) boot(voters int) error {
	var initial []string
	for number := range voters {
		initial = append(initial, nodeName(number)+"="+r.peerURL(number))
	}
	for number := range voters {
		if err := r.run(number, "--initial-cluster-state=new", "--initial-cluster="+strings.Join(initial, ",")); err != nil {
			return err
		}
	}
	return nil
}

// run starts the etcd of a node.
func (r *real) run(number int, initial ...string) error {
	n := r.nodes[number]
	started, err := process.Start(process.Command{
		Name: n.name, Path: r.binary, Log: r.data(number) + ".log",
		// Many run at once, each with little to do.
		Env: []string{"GOMAXPROCS=1"},
		Args: append([]string{
			"--name=" + n.name, "--data-dir=" + r.data(number), "--log-level=error", "--unsafe-no-fsync",
			"--listen-peer-urls=" + r.peerURL(number), "--initial-advertise-peer-urls=" + r.peerURL(number),
			"--listen-client-urls=" + r.url(number, clientPort), "--advertise-client-urls=" + r.url(number, clientPort),
			fmt.Sprintf("--heartbeat-interval=%d", heartbeat.Milliseconds()), fmt.Sprintf("--election-timeout=%d", election.Milliseconds()),
			"--initial-cluster-token=" + r.dir,
		}, initial...),
	})
	if err != nil {
		return err
	}
	n.process, n.frozen, n.trimmed = started, false, false
	return nil
}

// kill ends the etcd of a node.
func (r *real) kill(number int) error {
	n := r.nodes[number]
	n.disconnect()
	if n.process == nil {
		return nil
	}
	err := n.process.Kill()
	n.process, n.frozen = nil, false
	return err
}

// trim gives back what etcd has reserved for its log beyond what a history can
// fill: twice 64 MiB of zeros for each member. They stay zeros. Where a file
// system cannot do that, they stay reserved.
func (r *real) trim(number int) {
	const kept, reserved = 8 << 20, 64 << 20
	if r.nodes[number].trimmed {
		return
	}
	r.nodes[number].trimmed = true
	files, _ := filepath.Glob(filepath.Join(r.data(number), "member", "wal", "*"))
	for _, path := range files {
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, kept, reserved-kept)
		_ = file.Close()
	}
}

// freeze stops the clock of a node's etcd; thaw lets it go on.
func (r *real) freeze(number int) error {
	r.nodes[number].frozen = true
	r.nodes[number].disconnect()
	return syscall.Kill(r.nodes[number].process.PID(), syscall.SIGSTOP)
}

func (r *real) thaw(number int) error {
	r.nodes[number].frozen = false
	return syscall.Kill(r.nodes[number].process.PID(), syscall.SIGCONT)
}

// wipe kills the etcd of a node and removes its data.
func (r *real) wipe(number int) error {
	return errors.Join(r.kill(number), os.RemoveAll(r.data(number)))
}

// close ends all of it, and removes its data. Logs stay.
func (r *real) close() error {
	var failures []error
	for number := range r.nodes {
		failures = append(failures, r.wipe(number))
	}
	return errors.Join(failures...)
}

// connect is a client of one node's etcd alone.
func (n *node) connect(endpoint string) (*clientv3.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil {
		return n.client, nil
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: callTimeout, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", n.name, err)
	}
	n.client = client
	return client, nil
}

func (n *node) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client != nil {
		_ = n.client.Close()
		n.client = nil
	}
}

// at calls a node's etcd, which must have a leader, as Talos does.
func (r *real) at(ctx context.Context, number int, call func(ctx context.Context, client *clientv3.Client) error) error {
	client, err := r.nodes[number].connect(r.url(number, clientPort))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), callTimeout)
	defer cancel()
	return call(ctx, client)
}

// logs are the ends of what the processes said.
func (r *real) logs() string {
	const tail = 1500
	var text strings.Builder
	for number := range r.nodes {
		file, err := os.Open(r.data(number) + ".log")
		if err != nil {
			continue
		}
		if info, err := file.Stat(); err == nil && info.Size() > tail {
			_, _ = file.Seek(-tail, io.SeekEnd)
		}
		content, _ := io.ReadAll(file)
		_ = file.Close()
		_, _ = fmt.Fprintf(&text, "--- %s\n%s\n", nodeName(number), content)
	}
	return text.String()
}
