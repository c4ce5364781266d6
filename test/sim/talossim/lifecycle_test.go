package talossim_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// volumes are those that can be wiped, as the infrastructure provider asks for.
func volumes(g Gomega, ctx context.Context, node talosclient.Node) talosclient.ResetOptions {
	found, err := node.Volumes(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	options := talosclient.ResetOptions{}
	for _, volume := range found {
		if !volume.Discovered && volume.Location != "" && volume.ID != "META" {
			options.SystemLabels = append(options.SystemLabels, volume.ID)
		}
	}
	return options
}

func TestFromMaintenanceToANodeAndBack(t *testing.T) {
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: personality})
			cp, worker := w.add(), w.add()
			boot := w.maintenance(cp).Fingerprint()
			w.configure(worker, configgen.RoleWorker)
			w.configure(cp, configgen.RoleControlPlane)

			w.status(cp, talosclient.StageBooting, ConsistOf("services: etcd not running"))
			admin := w.admin(cp)
			w.Expect(admin.EtcdDataExists(t.Context())).To(BeFalse())
			w.Eventually(func(g Gomega) {
				services, err := admin.Services(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(services).To(ContainElement(And(HaveField("ID", "etcd"), HaveField("State", "Preparing"), HaveField("HealthKnown", false))))
			}).Should(Succeed())
			w.Expect(admin.Bootstrap(t.Context())).To(Succeed())
			w.Eventually(func() error { return admin.Bootstrap(t.Context()) }).Should(MatchError(talosclient.ErrAlreadyBootstrapped))
			w.ready(cp)
			w.ready(worker)
			w.Expect(admin.EtcdDataExists(t.Context())).To(BeTrue())
			w.Expect(admin.EtcdMembers(t.Context())).To(ConsistOf(And(HaveField("Hostname", "m1"), HaveField("Learner", false))))
			w.Expect(admin.StaticPods(t.Context())).To(And(HaveLen(3), HaveEach(HaveField("Ready", true))))
			w.Expect(w.secure(cp, secrets.RoleReader).Manifests(t.Context())).To(ConsistOf(And(HaveKeyWithValue("kind", "DaemonSet"),
				HaveKeyWithValue("spec", HaveKey("template")))), "neither Secrets nor what the user has made")
			w.Expect(admin.Addresses(t.Context())).To(Equal(talosclient.Addresses{Node: []string{cp.Spec().Address}}))
			w.Expect(admin.Hostname(t.Context())).To(Equal("m1"))
			w.Expect(w.asksAPI(cp, "/readyz")).To(Equal(http.StatusUnauthorized))
			w.Expect(w.asksAPI(cp, "/api/v1/nodes")).To(Equal(http.StatusUnauthorized))
			w.Expect(w.sim.Bootstraps()).To(Equal(1))

			for _, m := range []*talossim.Machine{worker, cp} {
				w.Expect(m.Wiped()).NotTo(Succeed())
				node := w.admin(m)
				w.Expect(node.Reset(t.Context(), volumes(w, t.Context(), node))).To(Succeed())
				w.Eventually(m.Wiped).Should(Succeed())
			}
			w.Expect(w.maintenance(cp).Fingerprint()).NotTo(Equal(boot), "another boot has another certificate")
			w.Expect(w.sim.Bootstraps()).To(Equal(1), "what was, is still counted")
			w.configure(cp, configgen.RoleControlPlane)
			w.status(cp, talosclient.StageBooting, ConsistOf("services: etcd not running"))
		})
	}
}

func TestWhatAMachineTellsInMaintenanceMode(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			w := newWorld(t, talossim.Options{Personality: personality})
			m := w.add()
			node := w.maintenance(m)
			w.Expect(node.Version(t.Context())).To(Equal(talossim.DefaultTalosVersion))
			hardware, err := node.Hardware(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(hardware.Platform).To(BeEquivalentTo(personality))
			w.Expect(hardware.Links).To(ConsistOf(HaveField("HardwareAddress", m.Spec().MAC)))
			w.Expect(node.Addresses(t.Context())).To(Equal(talosclient.Addresses{Internal: []string{m.Spec().Address}}))
			w.Expect(node.Hostname(t.Context())).To(Equal(map[talossim.Personality]string{talossim.Container: "m1"}[personality]), "its host names a container")
			status, err := node.MachineStatus(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status).To(Equal(talosclient.MachineStatus{Stage: talosclient.StageMaintenance, Ready: true}))
			w.Expect(node.Volumes(t.Context())).To(ContainElement(And(HaveField("ID", "STATE"), HaveField("Location", ""))))

			if personality == talossim.Container {
				w.Expect(hardware.SystemUUID).To(BeEmpty())
				w.Expect(hardware.Disks).To(BeEmpty())
				return
			}
			w.Expect(hardware.SystemUUID).To(Equal(m.Spec().UUID))
			w.Expect(hardware.SerialNumber).To(Equal("SN1"))
			w.Expect(hardware.Disks).To(ConsistOf(HaveField("DevPath", "/dev/vda")))
			w.Expect(hardware.CPUs).To(BeNumerically(">", 0))
			w.Expect(hardware.MemoryBytes).To(BeNumerically(">", 1<<30))
		})
	}
}

func TestAWorkerWaitsForAControlPlaneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	cp, worker := w.add(), w.add()
	w.configure(worker, configgen.RoleWorker)
	creds, err := w.bundle.ClientCredentials(secrets.RoleReader, time.Now(), testTTL)
	w.Expect(err).NotTo(HaveOccurred())
	w.Consistently(func() error {
		_, err := w.pool.Secure(t.Context(), worker.Spec().Address, creds)
		return err
	}).ShouldNot(Succeed(), "nobody has issued its certificate")

	w.configure(cp, configgen.RoleControlPlane)
	w.status(worker, talosclient.StageRunning, ConsistOf(`nodeReady: node "m2" status is not available yet`))
	w.Expect(w.admin(cp).Bootstrap(t.Context())).To(Succeed())
	w.ready(worker)
}

func TestAFleetThatKeepsItsData(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			w := newWorld(t, talossim.Options{Personality: personality})
			m := w.bootstrapped()
			boots := m.Boots()
			w.sim.KeepDataOnReset(true)
			node := w.admin(m)
			w.Expect(node.Reset(t.Context(), volumes(w, t.Context(), node))).To(Succeed())
			w.Eventually(m.Boots).Should(BeNumerically(">", boots))
			w.ready(m)
			w.Expect(m.Wiped()).NotTo(Succeed())
			w.Expect(w.sim.Bootstraps()).To(Equal(1))
		})
	}
}

func TestPowerCycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	members, err := w.admin(m).EtcdMembers(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	boots := m.Boots()
	m.PowerCycle()
	w.Eventually(m.Boots).Should(Equal(boots + 1))
	w.ready(m)
	w.Expect(w.admin(m).EtcdMembers(t.Context())).To(Equal(members))
}

func TestOnlyTheVolumesAskedForAreWiped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.bootstrapped()
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{SystemLabels: []string{"NOTHING"}})).NotTo(Succeed())
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{SystemLabels: []string{"STATE"}})).To(Succeed())
	node := w.maintenance(m)
	w.Expect(m.Wiped()).To(MatchError(ContainSubstring("data of etcd")))
	w.Expect(node.Volumes(t.Context())).To(ContainElement(And(HaveField("ID", "EPHEMERAL"), HaveField("Filesystem", "xfs"))),
		"without a configuration Talos manages no such volume, but it finds the partition")
	w.configure(m, configgen.RoleControlPlane)
	w.ready(m)
	w.Expect(w.sim.Bootstraps()).To(Equal(1), "the data was still there")
}

func TestManyMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	cp := w.bootstrapped()
	const count = 40
	workers := make([]*talossim.Machine, 0, count)
	for range count {
		worker := w.add()
		workers = append(workers, worker)
		w.configure(worker, configgen.RoleWorker)
	}
	for _, worker := range workers {
		w.ready(worker)
	}
	for _, worker := range workers {
		w.Expect(w.admin(worker).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	}
	for _, worker := range workers {
		w.Eventually(worker.Wiped).Should(Succeed())
	}
	w.Expect(cp.Stage()).To(Equal(talosclient.StageRunning))
}
