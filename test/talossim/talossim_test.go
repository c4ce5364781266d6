package talossim_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/talossim"
	"github.com/capi-talos/capi-talos/test/talossim/kube"
)

const timeout = 30 * time.Second

// world is a fleet and a client of it.
type world struct {
	*WithT
	t      *testing.T
	sim    *talossim.Sim
	pool   *talosclient.Pool
	bundle *secrets.Bundle
	cp     *talossim.Machine
	worker *talossim.Machine
}

func newWorld(t *testing.T, net byte, personality talossim.Personality) *world {
	t.Helper()
	w := &world{WithT: NewWithT(t), t: t, pool: talosclient.New()}
	clusters, err := kube.New()
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(clusters.Close)
	w.sim = talossim.New(talossim.Options{Clusters: clusters, Personality: personality})
	t.Cleanup(w.sim.Close)
	t.Cleanup(w.pool.Close)
	w.cp, w.worker = w.add(net, 1), w.add(net, 2)
	w.bundle, err = secrets.NewBundle(time.Now(), "v1.13", nil)
	w.Expect(err).NotTo(HaveOccurred())
	return w
}

func (w *world) add(net, host byte) *talossim.Machine {
	m, err := w.sim.Add(talossim.MachineSpec{
		Name: fmt.Sprintf("m%d", host), Address: fmt.Sprintf("127.9.%d.%d", net, host), MAC: fmt.Sprintf("52:54:00:00:%02x:%02x", net, host),
		UUID: fmt.Sprintf("11111111-2222-4333-8444-5555555555%02x", host),
	})
	w.Expect(err).NotTo(HaveOccurred())
	return m
}

func (w *world) maintenance(m *talossim.Machine) talosclient.Node {
	w.t.Helper()
	var node talosclient.Node
	w.Eventually(func() (err error) {
		node, err = w.pool.Maintenance(w.t.Context(), m.Spec().Address, "")
		return err
	}).WithTimeout(timeout).Should(Succeed())
	return node
}

func (w *world) secure(m *talossim.Machine, role string) talosclient.Node {
	w.t.Helper()
	creds, err := w.bundle.ClientCredentials(role, time.Now(), time.Hour)
	w.Expect(err).NotTo(HaveOccurred())
	var node talosclient.Node
	w.Eventually(func() (err error) {
		node, err = w.pool.Secure(w.t.Context(), m.Spec().Address, creds)
		return err
	}).WithTimeout(timeout).Should(Succeed())
	return node
}

func (w *world) configuration(m *talossim.Machine, role configgen.Role) []byte {
	w.t.Helper()
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: "sim", Endpoint: "https://" + w.cp.Spec().Address + ":6443",
		KubernetesVersion: "v1.36.3", Secrets: w.bundle.Machinery(), Hostname: m.Spec().Name,
	})
	w.Expect(err).NotTo(HaveOccurred())
	overlaid, err := configgen.Overlay(rendered, configgen.HostOverlay{ProviderID: "talos://" + m.Spec().Name, InstallDisk: "/dev/vda"})
	w.Expect(err).NotTo(HaveOccurred())
	return overlaid
}

func (w *world) stage(m *talossim.Machine, want string) {
	w.t.Helper()
	node := w.secure(m, secrets.RoleReader)
	w.Eventually(func(g Gomega) {
		status, err := node.MachineStatus(w.t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(status.Stage).To(Equal(want))
	}).WithTimeout(timeout).Should(Succeed())
}

func TestFromMaintenanceToANodeAndBack(t *testing.T) {
	for net, personality := range map[byte]talossim.Personality{1: talossim.Container, 2: talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			w := newWorld(t, net, personality)
			node := w.maintenance(w.cp)
			boot := node.Fingerprint()
			hardware, err := node.Hardware(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(hardware.Platform).To(BeEquivalentTo(personality))
			w.Expect(hardware.Links).To(ContainElement(HaveField("HardwareAddress", w.cp.Spec().MAC)))
			w.Expect(node.ApplyConfiguration(t.Context(), []byte("machine: {}"))).To(MatchError(talosclient.ErrInvalidConfiguration))
			w.Expect(node.ApplyConfiguration(t.Context(), w.configuration(w.cp, configgen.RoleControlPlane))).To(Succeed())
			w.Expect(w.maintenance(w.worker).ApplyConfiguration(t.Context(), w.configuration(w.worker, configgen.RoleWorker))).To(Succeed())

			w.stage(w.cp, talosclient.StageBooting)
			reader := w.secure(w.cp, secrets.RoleReader)
			w.Expect(reader.Bootstrap(t.Context())).NotTo(Succeed(), "a reader may only look")
			w.Expect(reader.EtcdDataExists(t.Context())).To(BeFalse())
			admin := w.secure(w.cp, secrets.RoleAdmin)
			w.Expect(admin.Bootstrap(t.Context())).To(Succeed())
			w.Expect(admin.Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
			w.stage(w.cp, talosclient.StageRunning)
			w.stage(w.worker, talosclient.StageRunning)
			w.Expect(reader.EtcdDataExists(t.Context())).To(BeTrue())
			w.Expect(reader.EtcdMembers(t.Context())).To(ConsistOf(HaveField("Hostname", "m1")))
			w.Expect(reader.StaticPods(t.Context())).To(HaveLen(3))
			w.Expect(reader.Addresses(t.Context())).To(Equal([]string{w.cp.Spec().Address}))
			w.expectAPI(t.Context())
			w.Expect(w.sim.Bootstraps()).To(Equal(1))

			volumes, err := admin.Volumes(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			options := talosclient.ResetOptions{}
			for _, volume := range volumes {
				if volume.ID != "META" {
					options.SystemLabels = append(options.SystemLabels, volume.ID)
				}
			}
			w.Expect(w.worker.Wiped()).NotTo(Succeed())
			w.Expect(w.secure(w.worker, secrets.RoleAdmin).Reset(t.Context(), options)).To(Succeed())
			w.Eventually(w.worker.Wiped).WithTimeout(timeout).Should(Succeed())
			w.Expect(admin.Reset(t.Context(), options)).To(Succeed())
			w.Eventually(w.cp.Wiped).WithTimeout(timeout).Should(Succeed())
			w.Expect(w.maintenance(w.cp).Fingerprint()).NotTo(Equal(boot), "another boot has another certificate")
			w.Expect(w.sim.Bootstraps()).To(Equal(1), "what was, is still counted")
		})
	}
}

func TestAFleetThatKeepsItsData(t *testing.T) {
	w := newWorld(t, 3, talossim.Container)
	w.Expect(w.maintenance(w.cp).ApplyConfiguration(t.Context(), w.configuration(w.cp, configgen.RoleControlPlane))).To(Succeed())
	admin := w.secure(w.cp, secrets.RoleAdmin)
	w.Expect(admin.Bootstrap(t.Context())).To(Succeed())
	w.stage(w.cp, talosclient.StageRunning)
	w.sim.KeepDataOnReset(true)
	boots := w.cp.Boots()
	w.Expect(admin.Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(w.cp.Boots).WithTimeout(timeout).Should(BeNumerically(">", boots))
	w.stage(w.cp, talosclient.StageRunning)
	w.Expect(w.cp.Wiped()).NotTo(Succeed())
	w.Expect(w.sim.Bootstraps()).To(Equal(1))
}

func TestFaults(t *testing.T) {
	w := newWorld(t, 4, talossim.Container)
	w.maintenance(w.cp)
	w.cp.Break(talossim.Faults{Silent: true})
	_, err := w.pool.Maintenance(t.Context(), w.cp.Spec().Address, "")
	w.Expect(err).To(HaveOccurred())
	w.cp.Break(talossim.Faults{BrokenDisk: true})
	boots := w.cp.Boots()
	w.Expect(w.maintenance(w.cp).ApplyConfiguration(t.Context(), w.configuration(w.cp, configgen.RoleControlPlane))).To(Succeed())
	w.Eventually(w.cp.Boots).WithTimeout(timeout).Should(BeNumerically(">", boots))
	w.maintenance(w.cp)
	w.cp.Break(talossim.Faults{OtherMachine: true})
}

// expectAPI asks the API server as the control plane provider does.
func (w *world) expectAPI(ctx context.Context) {
	w.t.Helper()
	roots := x509.NewCertPool()
	ca, _ := w.bundle.KubernetesCA()
	w.Expect(roots.AppendCertsFromPEM(ca)).To(BeTrue())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}}
	for path, want := range map[string]int{"/readyz": http.StatusOK, "/api/v1/nodes": http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+w.cp.Spec().Address+":6443"+path, nil)
		w.Expect(err).NotTo(HaveOccurred())
		response, err := client.Do(req)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(response.Body.Close()).To(Succeed())
		w.Expect(response.StatusCode).To(Equal(want), path)
	}
}
