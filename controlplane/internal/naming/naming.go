// Package naming makes the names of control plane Machines, which are the host
// names of the nodes, and of backups.
package naming

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

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

// UnfitError says what is wrong with a naming template. Its words stay the same
// from reconcile to reconcile.
type UnfitError struct{ problem string }

// Error implements error.
func (e *UnfitError) Error() string { return e.problem }

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
// cluster. Its errors are UnfitErrors.
func Check(naming, cluster, controlPlane string) error {
	name, err := compose(naming, cluster, controlPlane, pick(func(int) int { return 0 }))
	if err != nil {
		return err
	}
	other, err := compose(naming, cluster, controlPlane, pick(func(n int) int { return n - 1 }))
	if err != nil {
		return err
	}
	if name == other {
		return &UnfitError{fmt.Sprintf("gives every Machine the name %q: {{ .random }} must be part of the name itself", name)}
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return &UnfitError{fmt.Sprintf("gives names like %q, which cannot be host names of nodes: %s", name, strings.Join(problems, "; "))}
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

// pick always picks the same.
type pick func(int) int

// IntN implements requeue.Random.
func (p pick) IntN(n int) int { return p(n) }

func execute(naming, cluster, controlPlane, random string) (string, error) {
	parsed, err := parseTemplate(cmp.Or(naming, controlplanev1.DefaultMachineNamingTemplate))
	if err != nil {
		return "", err
	}
	var name bytes.Buffer
	if err := parsed.Execute(&name, map[string]any{
		"cluster":           map[string]any{"name": cluster},
		"talosControlPlane": map[string]any{"name": controlPlane},
		"random":            random,
	}); err != nil {
		return "", &UnfitError{fmt.Sprintf("executing the naming template: %v", err)}
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
