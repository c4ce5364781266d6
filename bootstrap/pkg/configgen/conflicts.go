package configgen

import (
	"errors"
	"fmt"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
)

// sections are the sections of the v1alpha1 document that Talos does not name
// when a document states the same.
var sections = map[string]string{
	"CRIBaseRuntimeSpecConfig":   "machine.baseRuntimeSpecOverrides",
	"DiscoveryIdentityConfig":    "cluster.id and cluster.secret",
	"HostnameConfig":             "machine.network.hostname or machine.features.stableHostname",
	"ImageCacheConfig":           "machine.features.imageCache",
	"KubeAdmissionControlConfig": "cluster.apiServer.admissionControl",
	"KubeAuditPolicyConfig":      "cluster.apiServer.auditPolicy",
	"KubeAuthorizerConfig":       "cluster.apiServer.authorizationConfig",
	"KubeEtcdEncryptionConfig":   "cluster.secretboxEncryptionSecret or cluster.aescbcEncryptionSecret",
	"TimeSyncConfig":             "machine.time",
	"VolumeConfig":               "machine.systemDiskEncryption",
}

// conflicts names each section of the v1alpha1 document that a document states
// as well, in Talos' own words and with what they leave out.
func conflicts(cfg coreconfig.Provider) error {
	legacy := cfg.RawV1Alpha1()
	if legacy == nil {
		return nil
	}
	var errs []error
	for _, document := range cfg.Documents() {
		judge, ok := document.(container.V1Alpha1ConflictValidator)
		if !ok {
			continue
		}
		err := judge.V1Alpha1ConflictValidate(legacy)
		if err == nil {
			continue
		}
		if section := sections[document.Kind()]; section != "" {
			err = fmt.Errorf("%w (%s)", err, section)
		}
		errs = append(errs, fmt.Errorf("the document %s and the v1alpha1 document state the same: %w", document.Kind(), err))
	}
	return errors.Join(errs...)
}
