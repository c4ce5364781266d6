package quickstart

import (
	"fmt"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// substitutes are what is taken where nothing can be downloaded.
type substitutes struct {
	// node is the image of kind's nodes, which Docker has.
	node string
	// archives are the images that the Pods of the cluster need.
	archives []string
	// repository has our providers, core is the component file of Cluster API's,
	// certManager the manifest of cert-manager.
	repository, core, certManager string
}

const createCluster = "kind create cluster --name talos-quick-start --wait 3m\n"

// release is where the page finds our providers.
const release = "https://github.com/capi-talos/capi-talos/releases/" + clusterctl.ReleaseVersion + "/"

// offline are all replacements for a machine where nothing can be downloaded. What
// such a machine needs of the cluster itself is in the templates of the repository.
func offline(s substitutes, ours []providers.Provider) []Replacement {
	all := []Replacement{
		{
			Said:  createCluster,
			Typed: strings.TrimSuffix(createCluster, "\n") + " --image " + s.node + "\nkind load image-archive --name talos-quick-start " + strings.Join(s.archives, " ") + "\n",
			Why:   "no image can be pulled",
		},
		{
			Said: "providers:\n",
			Typed: fmt.Sprintf("cert-manager:\n  url: %s\n  version: %s\nproviders:\n- name: cluster-api\n  type: CoreProvider\n  url: %s\n",
				s.certManager, parts.CertManagerVersion, s.core),
			Why: "clusterctl would download Cluster API and cert-manager",
		},
	}
	for _, provider := range ours {
		file := provider.ComponentsFile
		all = append(all, Replacement{
			Said:  release + file,
			Typed: s.repository + "/" + provider.Label + "/" + clusterctl.ReleaseVersion + "/" + file,
			Why:   "our release cannot be downloaded",
		})
	}
	return all
}
