package talossim

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	corev1 "k8s.io/api/core/v1"
)

// pair is a certificate and, where its holder issues by it, its key.
type pair = x509.PEMEncodedCertificateAndKey

// settings are what a machine takes from its configuration.
type settings struct {
	provider     config.Provider
	controlPlane bool
	hostname     string
	// talosCA issues certificates of the Talos API; a worker has no key.
	talosCA pair
	// kubernetesCA is that of the API server; a worker has no key.
	kubernetesCA pair
	// etcd tells etcd clusters apart, and etcdSubnets choose the address at which
	// its peers reach it.
	etcd        string
	etcdSubnets []string
	// addresses are those that it is to have on its links.
	addresses []netip.Addr
	endpoint  *url.URL
	apiPort   int
	// discovery reports whether it has a discovery service.
	discovery bool
	// apiSANs and talosSANs are more names for the certificates of both APIs.
	apiSANs, talosSANs []string
	// installDisk is the path of the disk to install on; empty when it is
	// selected otherwise.
	installDisk string
	// installs is the release that the tag of the installer image names; empty when
	// it names none.
	installs   string
	providerID string
	kubelet    string
	labels     map[string]string
	taints     []corev1.Taint
	// volumes are those on disks, beside those of Talos itself.
	volumes []volume
}

// mode is where a configuration is to run. What is installed needs no
// installation section (v1alpha1_server.go, modeWrapper).
type mode struct {
	Personality
	installed bool
}

func (m mode) String() string        { return string(m.Personality) }
func (m mode) RequiresInstall() bool { return m.Personality == Metal && !m.installed }
func (m mode) InContainer() bool     { return m.Personality == Container }

// parse reads a configuration as a machine does, with the machinery's validation
// against what the machine has found about itself.
func (b *boot) parse(ctx context.Context, raw []byte) (*settings, error) {
	cfg, err := configloader.NewFromBytes(raw)
	if err != nil {
		return nil, err
	}
	if err := known(cfg, b.release); err != nil {
		return nil, err
	}
	if cfg.RawV1Alpha1() == nil {
		return nil, errors.New("a configuration without a v1alpha1 document is not simulated")
	}
	where := mode{Personality: b.sim.options.Personality}
	b.sim.look(func() { where.installed = b.machine.disk.installed })
	if _, err := cfg.ValidateAtRuntime(ctx, b.resources.state, where); err != nil {
		return nil, err
	}
	return read(cfg), nil
}

func read(cfg config.Provider) *settings {
	s := &settings{
		provider:     cfg,
		controlPlane: cfg.Machine().Type().IsControlPlane(),
		endpoint:     cfg.K8sClusterConfig().ClusterEndpoint(),
		apiPort:      defaultAPIPort,
		discovery:    len(cfg.DiscoveryServiceConfigs()) > 0,
	}
	s.volumes = volumesOf(cfg)
	if hostname := cfg.NetworkHostnameConfig(); hostname != nil {
		s.hostname = hostname.Hostname()
	}
	s.installDisk, s.talosSANs = cfg.Machine().Install().Disk(), cfg.Machine().Security().CertSANs()
	s.installs = releaseIn(installerOf(cfg))
	s.talosCA = pairOf(cfg.Machine().Security().IssuingCA(), cfg.Machine().Security().AcceptedCAs())
	if ca := cfg.K8sAPIServerCAConfig(); ca != nil {
		s.kubernetesCA = pairOf(ca.IssuingCA(), ca.AcceptedCAs())
	}
	if s.controlPlane {
		s.etcd = string(cfg.Cluster().Etcd().CA().Crt)
		s.etcdSubnets, s.addresses = cfg.Cluster().Etcd().AdvertisedSubnets(), linkAddresses(cfg)
		if api := cfg.K8sAPIServerConfig(); api != nil {
			s.apiSANs = api.CertSANs()
			if api.APIPort() != 0 {
				s.apiPort = api.APIPort()
			}
		}
	}
	if kubelet := cfg.K8sKubeletConfig(); kubelet != nil {
		if ids := kubelet.ExtraArgs()["provider-id"]; len(ids) > 0 {
			s.providerID = ids[0]
		}
		if _, tag, found := strings.Cut(kubelet.Image()[strings.LastIndex(kubelet.Image(), "/")+1:], ":"); found {
			s.kubelet, _, _ = strings.Cut(tag, "@")
		}
	}
	if node := cfg.K8sNodeConfig(); node != nil {
		s.labels = node.Labels()
		for key, value := range node.Taints() {
			content, effect, found := strings.Cut(value, ":")
			if !found {
				content, effect = "", value
			}
			s.taints = append(s.taints, corev1.Taint{Key: key, Value: content, Effect: corev1.TaintEffect(effect)})
		}
	}
	return s
}

// installerOf is the installer image of a configuration.
func installerOf(cfg config.Provider) string {
	if install := cfg.UnattendedInstallConfig(); install != nil && install.InstallerImage() != "" {
		return install.InstallerImage()
	}
	return cfg.Machine().Install().Image()
}

// releaseIn is the tag of an image where it is a release.
func releaseIn(image string) string {
	tag := image[strings.LastIndex(image, ":")+1:]
	if _, err := semver.Parse(strings.TrimPrefix(tag, "v")); err != nil || !strings.HasPrefix(tag, "v") {
		return ""
	}
	return tag
}

// defaultAPIPort is where an API server listens.
const defaultAPIPort = 6443

func pairOf(issuing *x509.PEMEncodedCertificateAndKey, accepted []*x509.PEMEncodedCertificate) pair {
	if issuing != nil && len(issuing.Crt) > 0 {
		return *issuing
	}
	if len(accepted) > 0 {
		return pair{Crt: accepted[0].Crt}
	}
	return pair{}
}
