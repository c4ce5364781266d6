// Package naming makes the names of control plane Machines, which are the host
// names of the nodes, and of backups.
package naming

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

const (
	// maxLength is how long a name may be.
	maxLength = 63
	// randomLength is the length of the random part of a name.
	randomLength = 5
	// alphabet has no vowels, so that no words come out, and no characters that
	// look alike.
	alphabet = "bcdfghjklmnpqrstvwxz2456789"
)

// UnfitError says that a naming template gives names that no node can have. Its
// words stay the same from reconcile to reconcile.
type UnfitError struct {
	// Like is a name that the template gives.
	Like string
	// Problems say what is wrong with it.
	Problems []string
}

// Error implements error.
func (e *UnfitError) Error() string {
	return fmt.Sprintf("gives names like %q, which cannot be host names of nodes: %s", e.Like, strings.Join(e.Problems, "; "))
}

// MachineName makes a name by a naming template; an empty one means the
// default. Its errors are those of Check.
func MachineName(naming, cluster, controlPlane string, random requeue.Random) (string, error) {
	if err := Check(naming, cluster, controlPlane); err != nil {
		return "", err
	}

	return compose(naming, cluster, controlPlane, random)
}

// BackupName makes a name for a backup of a cluster before a change, which no other one has.
func BackupName(cluster string, random requeue.Random) string {
	return cluster + "-before-" + randomString(random) + randomString(random)
}

// Check says what is wrong with a naming template for a control plane of a
// cluster: it cannot be read or executed, or it is an UnfitError.
func Check(naming, cluster, controlPlane string) error {
	name, err := compose(naming, cluster, controlPlane, first{})
	if err != nil {
		return err
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return &UnfitError{Like: name, Problems: problems}
	}

	return nil
}

func compose(naming, cluster, controlPlane string, random requeue.Random) (string, error) {
	name, err := execute(naming, cluster, controlPlane, randomString(random))
	if err != nil {
		return "", err
	}
	if len(name) <= maxLength {
		return name, nil
	}

	return strings.ToValidUTF8(name[:maxLength-randomLength], "") + randomString(random), nil
}

// first always picks the first.
type first struct{}

// IntN implements requeue.Random.
func (first) IntN(int) int { return 0 }

func execute(naming, cluster, controlPlane, random string) (string, error) {
	if naming == "" {
		naming = controlplanev1.DefaultMachineNamingTemplate
	}
	parsed, err := template.New("machineNaming").Option("missingkey=error").Parse(naming)
	if err != nil {
		return "", fmt.Errorf("parsing the naming template: %w", err)
	}
	var name bytes.Buffer
	if err := parsed.Execute(&name, map[string]any{
		"cluster":           map[string]any{"name": cluster},
		"talosControlPlane": map[string]any{"name": controlPlane},
		"random":            random,
	}); err != nil {
		return "", fmt.Errorf("executing the naming template: %w", err)
	}

	return name.String(), nil
}

func randomString(random requeue.Random) string {
	var b strings.Builder
	for range randomLength {
		b.WriteByte(alphabet[random.IntN(len(alphabet))])
	}

	return b.String()
}
