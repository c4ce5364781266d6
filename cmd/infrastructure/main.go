// The infrastructure manager runs the Talos infrastructure provider.
package main

import (
	"bufio"
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/provider"
	"github.com/capi-talos/capi-talos/cmd/internal/machines"
	"github.com/capi-talos/capi-talos/cmd/internal/startup"
	"github.com/capi-talos/capi-talos/infrastructure/setup"
)

// The diagnostics endpoint authenticates and authorizes its callers.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

const (
	// resolvConf is where the kubelet tells a Pod how to look up names.
	resolvConf = "/etc/resolv.conf"
)

func main() {
	probeInterval := pflag.Duration("host-probe-interval", setup.DefaultProbeInterval,
		"How often a machine is looked at that nobody has claimed, or that does not answer.")
	clusterDomain := pflag.String("cluster-domain", "",
		"The DNS domain of the management cluster, which is in the certificates of control planes in Pods; empty means the one that the manager's own Pod looks names up in, else cluster.local.")
	imageFactory := pflag.String("image-factory", "",
		"The host, and the port if any, of the Image Factory from which installer images of machines on metal come; empty means the one that has made what a machine has booted, else factory.talos.dev.")
	talos := machines.New()
	defer talos.Close()
	startup.Main(startup.Program{
		Name:          "capt-infrastructure-manager",
		AddToScheme:   setup.AddToScheme,
		CachedSecrets: setup.CachedSecrets(),
		CacheByObject: setup.CacheByObject(),
		Setup: func(ctx context.Context, mgr ctrl.Manager, options provider.Options) error {
			dialer, err := talos.Dialer()
			if err != nil {
				return err
			}
			return setup.SetupWithManager(ctx, mgr, setup.Options{
				Options:       options,
				Dialer:        dialer,
				ProbeInterval: *probeInterval,
				ClusterDomain: cmp.Or(*clusterDomain, ownDomain(resolvConf)),
				ImageFactory:  *imageFactory,
			})
		},
	})
}

// ownDomain is the DNS domain of the cluster that the manager runs in, from its
// resolver configuration: a Pod searches svc.<domain>. It is empty outside a cluster.
func ownDomain(path string) string {
	file, err := os.Open(path) //nolint:gosec // G304: a constant, and a file of the test.
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	domain := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != "search" {
			continue
		}
		// The last search line counts.
		domain = ""
		for _, searched := range fields[1:] {
			if of, isServices := strings.CutPrefix(searched, "svc."); isServices {
				domain = strings.TrimSuffix(of, ".")
				break
			}
		}
	}

	return domain
}
