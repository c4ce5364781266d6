package talossim_test

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	cosi "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

const testTTL = time.Hour

// raw is a connection with everything that the Talos API has; anonymous when
// role is empty.
func (w *world) raw(m *talossim.Machine, role string) *client.Client {
	w.t.Helper()
	settings := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // G402: a test of the server.
	if role != "" {
		creds, err := w.bundle.ClientCredentials(role, time.Now(), testTTL)
		w.Expect(err).NotTo(HaveOccurred())
		pair, err := tls.X509KeyPair(creds.Cert, creds.Key)
		w.Expect(err).NotTo(HaveOccurred())
		settings.Certificates = []tls.Certificate{pair}
	}
	conn, err := grpc.NewClient(net.JoinHostPort(m.Spec().Address, "50000"), grpc.WithTransportCredentials(credentials.NewTLS(settings)))
	w.Expect(err).NotTo(HaveOccurred())
	w.t.Cleanup(func() { _ = conn.Close() })
	return &client.Client{MachineClient: machine.NewMachineServiceClient(conn), COSI: state.WrapCore(cosi.NewAdapter(cosiv1.NewStateClient(conn)))}
}

func TestMaintenanceModePermitsWhatTalosDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	w.maintenance(m)
	raw := w.raw(m, secrets.RoleAdmin) // What a client presents does not count.

	_, err := raw.MachineClient.Bootstrap(t.Context(), &machine.BootstrapRequest{})
	w.Expect(status.Code(err)).To(Equal(codes.PermissionDenied))
	_, err = raw.MachineClient.Reset(t.Context(), &machine.ResetRequest{})
	w.Expect(status.Code(err)).To(Equal(codes.PermissionDenied))
	_, err = raw.MachineClient.Reboot(t.Context(), &machine.RebootRequest{})
	w.Expect(status.Code(err)).To(Equal(codes.PermissionDenied))
	_, err = raw.MachineClient.EtcdMemberList(t.Context(), &machine.EtcdMemberListRequest{})
	w.Expect(status.Code(err)).To(Equal(codes.Unimplemented))
	_, err = safe.StateListAll[*config.MachineConfig](t.Context(), raw.COSI)
	w.Expect(status.Code(err)).To(Equal(codes.PermissionDenied), "it is sensitive")
	w.Expect(raw.COSI.Create(t.Context(), runtime.NewMachineStatus())).To(MatchError(ContainSubstring("not authorized")))
	_, err = safe.StateListAll[*runtime.MachineStatus](t.Context(), raw.COSI)
	w.Expect(err).NotTo(HaveOccurred())
}

func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.bootstrapped()
	reader := w.raw(m, secrets.RoleReader)
	_, err := reader.MachineClient.EtcdMemberList(t.Context(), &machine.EtcdMemberListRequest{QueryLocal: true})
	w.Expect(err).NotTo(HaveOccurred())
	for name, call := range map[string]func() error{
		"bootstrap": func() error {
			_, err := reader.MachineClient.Bootstrap(t.Context(), &machine.BootstrapRequest{})
			return err
		},
		"reset": func() error {
			_, err := reader.MachineClient.Reset(t.Context(), &machine.ResetRequest{})
			return err
		},
		"reboot": func() error {
			_, err := reader.MachineClient.Reboot(t.Context(), &machine.RebootRequest{})
			return err
		},
		"apply": func() error {
			_, err := reader.MachineClient.ApplyConfiguration(t.Context(), &machine.ApplyConfigurationRequest{})
			return err
		},
		"configuration": func() error {
			_, err := safe.StateListAll[*config.MachineConfig](t.Context(), reader.COSI)
			return err
		},
	} {
		w.Expect(status.Code(call())).To(Equal(codes.PermissionDenied), name)
	}

	w.Expect(reader.COSI.Create(t.Context(), runtime.NewMachineStatus())).To(MatchError(ContainSubstring("not authorized")))
	admin := w.raw(m, secrets.RoleAdmin)
	found, err := safe.StateListAll[*config.MachineConfig](t.Context(), admin.COSI)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(found.Len()).To(Equal(1))
	w.Expect(admin.COSI.Create(t.Context(), runtime.NewMachineStatus())).To(MatchError(ContainSubstring("write access is not allowed")))
	boots := m.Boots()
	_, err = admin.MachineClient.Reboot(t.Context(), &machine.RebootRequest{})
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(m.Boots).Should(Equal(boots + 1))
	w.ready(m)
}

func TestStrangersAreTurnedAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	_, err := w.pool.Maintenance(t.Context(), m.Spec().Address, "")
	w.Expect(err).To(MatchError(talosclient.ErrNotInMaintenance))
	creds, err := stranger().ClientCredentials(secrets.RoleAdmin, time.Now(), testTTL)
	w.Expect(err).NotTo(HaveOccurred())
	_, err = w.pool.Secure(t.Context(), m.Spec().Address, creds)
	w.Expect(err).To(MatchError(talosclient.ErrUntrusted))

	other := w.add()
	fingerprint := w.maintenance(other).Fingerprint()
	_, err = w.pool.Maintenance(t.Context(), other.Spec().Address, "bm90IGl0")
	w.Expect(err).To(MatchError(talosclient.ErrFingerprintMismatch))
	_, err = w.pool.Maintenance(t.Context(), other.Spec().Address, fingerprint)
	w.Expect(err).NotTo(HaveOccurred())
	_, err = w.pool.Secure(t.Context(), other.Spec().Address, creds)
	w.Expect(err).To(MatchError(talosclient.ErrUntrusted))
}
