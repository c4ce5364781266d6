package configgen

import (
	"errors"
	"fmt"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	corev1 "k8s.io/api/core/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

const (
	// maxBytes is how long a machine configuration may be that is stored, and how much a
	// patch may stand for: as much as a Secret holds.
	maxBytes = corev1.MaxSecretSize
	// maxRead is how much a configuration may stand for when it is read, or is handed to a
	// machine: more, because each value counts, a host adds to it, and what is not longer
	// than maxBytes must never be refused for it.
	maxRead = 4 * maxBytes
	// maxReadAgain is how much may be read at admission of what JSON patches come to, the
	// whole configuration for each of them: 5 s.
	maxReadAgain = 32 * maxBytes
)

// errReadTooOften says that JSON patches take too long.
var errReadTooOften = errors.New("so many JSON patches of so long a configuration take too long, because all of it is read after each; " +
	"use fewer, or state what is long in strategicPatches, which come after them")

// tooLong says that a configuration is longer than so many bytes.
func tooLong(limit int) error {
	why := ""
	if limit == maxBytes {
		why = ", which no Secret holds"
	}
	return fmt.Errorf("the machine configuration would be longer than %d bytes%s; bring long content to the cluster in another way, for instance with a ClusterResourceSet", limit, why)
}

// CheckPatch refuses a strategic patch that stands for more than a machine configuration
// may be, before anything is made of it.
func CheckPatch(patch string) error {
	return yamlsize.CheckIndented([]byte(patch), maxBytes)
}

// encode writes a configuration, unless it is too long.
func (r rules) encode(cfg coreconfig.Provider) ([]byte, error) {
	encoded, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err == nil && len(encoded) > r.limit {
		err = tooLong(r.limit)
	}
	return encoded, err
}
