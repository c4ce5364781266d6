package talossim_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

const (
	timeout  = 30 * time.Second
	interval = 20 * time.Millisecond
	// quiet is how long nothing must happen where nothing may.
	quiet = 300 * time.Millisecond
)

// world is a fleet, and a client of it: the one of the managers.
type world struct {
	*WithT
	t      *testing.T
	sim    *talossim.Sim
	pool   *talosclient.Pool
	bundle *secrets.Bundle
	subnet *talossim.Subnet
	hosts  byte
	// endpoint is that of the configurations; the first machine's API server.
	endpoint string
	// contract is that of the configurations.
	contract string
	// passes lets time pass where the clock is a fake one, and what failed is tried again;
	// nil lets none.
	passes func()
}

func newWorld(t *testing.T, options talossim.Options) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), t: t, pool: talosclient.New(), contract: "v1.13"}
	w.SetDefaultEventuallyTimeout(timeout)
	w.SetDefaultEventuallyPollingInterval(interval)
	w.SetDefaultConsistentlyDuration(quiet)
	var err error
	w.subnet, err = talossim.ClaimSubnet(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.endpoint = w.subnet.Address(1)
	clusters, err := kube.New()
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(clusters.Close)
	options.Clusters = clusters
	w.sim = talossim.New(options)
	t.Cleanup(w.sim.Close)
	t.Cleanup(w.pool.Close)
	w.bundle = bundle()
	return w
}

// bundle is that of all worlds: they know nothing of each other, and a bundle
// takes long to make. stranger is another one.
var (
	bundle   = sync.OnceValue(newBundle) //nolint:gochecknoglobals // Made once.
	stranger = sync.OnceValue(newBundle) //nolint:gochecknoglobals // Made once.
)

func newBundle() *secrets.Bundle {
	made, err := secrets.NewBundle(time.Now(), "v1.13", nil)
	if err != nil {
		panic(err)
	}
	return made
}

func (w *world) add(changes ...func(*talossim.MachineSpec)) *talossim.Machine {
	w.t.Helper()
	w.hosts++
	second, third := w.subnet.Bytes()
	spec := talossim.MachineSpec{
		Name: fmt.Sprintf("m%d", w.hosts), Address: w.subnet.Address(int(w.hosts)),
		MAC:  fmt.Sprintf("52:54:00:%02x:%02x:%02x", second, third, w.hosts),
		UUID: fmt.Sprintf("11111111-2222-4333-8444-5555555555%02x", w.hosts), SerialNumber: fmt.Sprintf("SN%d", w.hosts),
	}
	for _, change := range changes {
		change(&spec)
	}
	m, err := w.sim.Add(spec)
	w.Expect(err).NotTo(HaveOccurred())
	return m
}

// addWith adds a machine with disks of its own.
func (w *world) addWith(disks ...talossim.Disk) *talossim.Machine {
	w.t.Helper()
	return w.add(func(spec *talossim.MachineSpec) { spec.Disks = disks })
}

// maintenance is a connection to a machine in maintenance mode.
func (w *world) maintenance(m *talossim.Machine) talosclient.Node {
	w.t.Helper()
	var node talosclient.Node
	w.Eventually(func() (err error) {
		node, err = w.pool.Maintenance(w.t.Context(), m.Spec().Address, "")
		return err
	}).Should(Succeed())
	return node
}

// secure is a connection to a configured machine.
func (w *world) secure(m *talossim.Machine, role string) talosclient.Node {
	w.t.Helper()
	creds, err := w.bundle.ClientCredentials(role, time.Now(), time.Hour)
	w.Expect(err).NotTo(HaveOccurred())
	var node talosclient.Node
	w.Eventually(func() (err error) {
		node, err = w.pool.Secure(w.t.Context(), m.Spec().Address, creds)
		return err
	}).Should(Succeed())
	return node
}

func (w *world) admin(m *talossim.Machine) talosclient.Node {
	w.t.Helper()
	return w.secure(m, secrets.RoleAdmin)
}

// configuration is what the providers would hand over.
func (w *world) configuration(m *talossim.Machine, role configgen.Role, changes ...func(*configgen.HostOverlay)) []byte {
	w.t.Helper()
	return w.configurationAs(m, role, m.Spec().Name, changes...)
}

// configurationAs is the same under another host name.
func (w *world) configurationAs(m *talossim.Machine, role configgen.Role, hostname string, changes ...func(*configgen.HostOverlay)) []byte {
	w.t.Helper()
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: w.contract, ClusterName: "sim", Endpoint: "https://" + w.endpoint + ":6443",
		KubernetesVersion: "v1.36.3", Secrets: w.bundle.Machinery(), Hostname: hostname,
	})
	w.Expect(err).NotTo(HaveOccurred())
	overlay := configgen.HostOverlay{ProviderID: "talos://" + m.Spec().Name}
	if disks := m.Spec().Disks; len(disks) > 0 {
		overlay.InstallDisk = disks[0].Path
	} else {
		overlay.Container = true
	}
	for _, change := range changes {
		change(&overlay)
	}
	overlaid, err := configgen.Overlay(rendered, overlay)
	w.Expect(err).NotTo(HaveOccurred())
	return overlaid
}

func (w *world) configure(m *talossim.Machine, role configgen.Role) {
	w.t.Helper()
	w.Expect(w.maintenance(m).ApplyConfiguration(w.t.Context(), w.configuration(m, role))).To(Succeed())
}

// configureAs makes a machine a control plane node of that name.
func (w *world) configureAs(m *talossim.Machine, hostname string) {
	w.t.Helper()
	w.Expect(w.maintenance(m).ApplyConfiguration(w.t.Context(), w.configurationAs(m, configgen.RoleControlPlane, hostname))).To(Succeed())
}

// ready waits until a machine runs and nothing is unmet.
func (w *world) ready(m *talossim.Machine) {
	w.t.Helper()
	w.status(m, talosclient.StageRunning, BeEmpty())
}

// status waits for a stage, and for what is unmet.
func (w *world) status(m *talossim.Machine, stage string, unmet OmegaMatcher) {
	w.t.Helper()
	w.Eventually(func(g Gomega) {
		if w.passes != nil {
			w.passes()
		}
		status, err := w.secure(m, secrets.RoleReader).MachineStatus(w.t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(status.Stage).To(Equal(stage))
		g.Expect(status.Unmet).To(unmet)
		g.Expect(status.Ready).To(Equal(len(status.Unmet) == 0))
	}).Should(Succeed())
}

// bootstrapped is a ready cluster of one control plane node.
func (w *world) bootstrapped() *talossim.Machine {
	w.t.Helper()
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	w.Eventually(func() error { return w.admin(m).Bootstrap(w.t.Context()) }).Should(Succeed())
	w.ready(m)
	return m
}

// asksAPI asks an API server without a client certificate.
func (w *world) asksAPI(m *talossim.Machine, path string) (int, error) {
	roots := x509.NewCertPool()
	ca, _ := w.bundle.KubernetesCA()
	w.Expect(roots.AppendCertsFromPEM(ca)).To(BeTrue())
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "https://"+m.Spec().Address+":6443"+path, nil)
	w.Expect(err).NotTo(HaveOccurred())
	response, err := (&http.Client{Transport: transport, Timeout: timeout}).Do(req)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}
