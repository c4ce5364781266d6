package vms

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

const (
	// firstMachine is the last byte of the address of the first machine.
	firstMachine = 11
	// prefixBits are those of a network of 256 addresses.
	prefixBits = 24
	// storageSuffix makes the name of the second network, which has no DHCP.
	storageSuffix = "-2"
	// packetFilter is the program with whose rules Docker filters packets.
	packetFilter = "iptables"
	// bootScript is what iPXE runs.
	bootScript = "boot.ipxe"
	// readTimeout is how long a machine may take to send what it asks for.
	readTimeout = 30 * time.Second
)

// network are two bridges, and for the first of them DHCP, TFTP and HTTP, by which machines
// boot. What machines send does not leave this machine.
type network struct {
	options Options
	files   *http.Server
	dhcp    *process.Process
	// boot is what machines boot.
	boot atomic.Pointer[NetworkBoot]
	// refused are the networks of machines in which this machine is to send nothing.
	refused []netip.Prefix
}

// NetworkBoot is what machines boot over the network.
type NetworkBoot struct {
	// Part is the part with Talos.
	Part string
	// Arguments are further ones of the kernel.
	Arguments string
}

func newNetwork(ctx context.Context, options Options) (_ *network, err error) {
	n := &network{options: options}
	n.boot.Store(&NetworkBoot{Part: parts.TalosBoot})
	defer func() {
		if err != nil {
			err = errors.Join(err, n.down(context.WithoutCancel(ctx)))
		}
	}()
	// What an earlier run that was killed has left.
	if err := n.remove(ctx); err != nil {
		return nil, err
	}
	for _, bridge := range n.bridges() {
		if err := run(ctx, "ip", "link", "add", bridge, "type", "bridge"); err != nil {
			return nil, err
		}
		if err := run(ctx, "ip", "link", "set", bridge, "up"); err != nil {
			return nil, err
		}
	}
	if err := run(ctx, "ip", "address", "add", fmt.Sprintf("%s/%d", n.gateway(), prefixBits), "dev", options.Bridge); err != nil {
		return nil, err
	}
	if err := errors.Join(n.confine(ctx), n.pass(ctx)); err != nil {
		return nil, err
	}
	base, err := n.serve(ctx)
	if err != nil {
		return nil, err
	}
	n.dhcp, err = n.lease(base)
	return n, err
}

func (n *network) bridges() []string {
	return []string{n.options.Bridge, n.options.Bridge + storageSuffix}
}

// refuse keeps this machine from sending anything for a network that only machines have: it
// would go to the default gateway.
func (n *network) refuse(ctx context.Context, subnet netip.Prefix) error {
	if err := run(ctx, "ip", "route", "replace", "unreachable", subnet.String()); err != nil {
		return err
	}
	n.refused = append(n.refused, subnet)
	return nil
}

func (n *network) gateway() string { return balancer.Address(n.options.Subnet, 1) }

// table is the name of the rules that keep packets on this machine.
func (n *network) table() string { return "vms-" + n.options.Bridge }

// confine drops what would leave this machine, or come to machines from elsewhere.
func (n *network) confine(ctx context.Context) error {
	rules := fmt.Sprintf("add table inet %[1]s; add chain inet %[1]s forward { type filter hook forward priority -10; }; "+
		"add rule inet %[1]s forward iifname { %[2]q, %[3]q } oifname != { %[2]q, %[3]q } drop", n.table(), n.bridges()[0], n.bridges()[1])
	return run(ctx, "nft", rules)
}

// pass lets a bridge pass frames on from machine to machine. Docker has what is forwarded
// dropped, and where the kernel filters bridges as well (bridge-nf-call-iptables) that takes
// these frames, too. No table of ours can accept what another one drops.
func (n *network) pass(ctx context.Context) error {
	if _, err := exec.LookPath(packetFilter); err != nil {
		return nil //nolint:nilerr // Docker needs that program: there is none here.
	}
	for _, bridge := range n.bridges() {
		if err := run(ctx, packetFilter, passing("--insert", bridge)...); err != nil {
			return err
		}
	}
	return nil
}

// passing does something with the rule that lets a bridge pass frames on.
func passing(action, bridge string) []string {
	return []string{"--wait", action, "FORWARD", "--in-interface", bridge, "--out-interface", bridge, "--jump", "ACCEPT"}
}

// remove takes bridges, the links of machines, and rules away. Those that are not there are
// fine.
func (n *network) remove(ctx context.Context) error {
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("listing the links of this machine: %w", err)
	}
	var failures []error
	for _, link := range links {
		if slices.Contains(n.bridges(), link.Name) || strings.HasPrefix(link.Name, n.options.Bridge+".") {
			failures = append(failures, run(ctx, "ip", "link", "delete", link.Name))
		}
	}
	for _, bridge := range n.bridges() {
		if run(ctx, packetFilter, passing("--check", bridge)...) == nil {
			failures = append(failures, run(ctx, packetFilter, passing("--delete", bridge)...))
		}
	}
	// To add a table that is there changes nothing; one that is not cannot be deleted.
	failures = append(failures, run(ctx, "nft", fmt.Sprintf("add table inet %[1]s; delete table inet %[1]s", n.table())))
	return errors.Join(failures...)
}

// serve serves what machines boot over HTTP, and returns its base URL.
func (n *network) serve(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(n.gateway(), "0"))
	if err != nil {
		return "", fmt.Errorf("serving what machines boot: %w", err)
	}
	base := "http://" + listener.Addr().String() + "/"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		http.FileServer(http.Dir(n.options.Built.Dir(n.boot.Load().Part))).ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /"+bootScript, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(script(base, n.boot.Load().Arguments)))
	})
	n.files = &http.Server{Handler: mux, ReadHeaderTimeout: readTimeout}
	go func() { _ = n.files.Serve(listener) }()
	return base, nil
}

// script is what iPXE runs: Talos insists that "pti=on" comes before what turns it off.
func script(base, further string) string {
	return fmt.Sprintf("#!ipxe\nkernel %[1]s%[2]s initrd=%[3]s talos.platform=metal slab_nomerge pti=on consoleblank=0 printk.devkmsg=on panic=10 %[4]s %[5]s\n"+
		"initrd --name %[3]s %[1]s%[3]s\nboot\n", base, parts.KernelFile, parts.InitramfsFile, parts.KernelArguments, further)
}

// lease starts DHCP, names and TFTP: each machine has its own address, the firmware is given
// iPXE, and iPXE its script.
func (n *network) lease(base string) (*process.Process, error) {
	dir := n.options.Dir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the network: %w", err)
	}
	// As another group, it would not be killed with this process any more.
	first, last := machineAddress(n.options.Subnet, 1), machineAddress(n.options.Subnet, maxMachines)
	lines := []string{
		"keep-in-foreground", "user=root", "group=root", "interface=" + n.options.Bridge, "bind-interfaces", "except-interface=lo", "no-resolv", "no-hosts", "log-dhcp",
		"log-facility=-", "dhcp-authoritative", fmt.Sprintf("dhcp-range=%s,%s,255.255.255.0,12h", first, last),
		"dhcp-option=option:router," + n.gateway(), "dhcp-option=option:dns-server," + n.gateway(),
		"enable-tftp", "tftp-root=" + n.options.Built.Dir(parts.TalosBoot),
		"dhcp-match=set:ipxe,175", "dhcp-boot=tag:ipxe," + base + bootScript, "dhcp-boot=tag:!ipxe," + parts.IPXEFile,
		"dhcp-leasefile=" + filepath.Join(dir, "dnsmasq.leases"), "pid-file=" + filepath.Join(dir, "dnsmasq.pid"),
	}
	for number := 1; number <= maxMachines; number++ {
		lines = append(lines, fmt.Sprintf("dhcp-host=%s,%s,%s", hardwareAddress(0, number), machineAddress(n.options.Subnet, number), machineName(number)))
	}
	file := filepath.Join(dir, "dnsmasq.conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration of DHCP: %w", err)
	}
	program, err := exec.LookPath("dnsmasq")
	if err != nil {
		return nil, fmt.Errorf("looking for dnsmasq: %w", err)
	}
	return process.Start(process.Command{Name: "dnsmasq", Path: program, Args: []string{"--conf-file=" + file}, Log: filepath.Join(dir, "dnsmasq.log")})
}

func machineName(number int) string { return "vm-" + strconv.Itoa(number) }

func machineAddress(subnet netip.Prefix, number int) string {
	return balancer.Address(subnet, firstMachine+number-1)
}

// hardwareAddress is that of a link of a machine.
func hardwareAddress(link, number int) string {
	return fmt.Sprintf("52:54:00:ca:%02x:%02x", link, number)
}

// down may be called twice.
func (n *network) down(ctx context.Context) error {
	var failures []error
	if n.dhcp != nil {
		failures = append(failures, n.dhcp.Stop(ctx, process.DefaultGrace))
	}
	if n.files != nil {
		failures = append(failures, n.files.Close())
	}
	for _, subnet := range n.refused {
		failures = append(failures, run(ctx, "ip", "route", "delete", "unreachable", subnet.String()))
	}
	n.refused = nil
	return errors.Join(append(failures, n.remove(ctx))...)
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil { //nolint:gosec // names of ours
		return fmt.Errorf("running %s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
