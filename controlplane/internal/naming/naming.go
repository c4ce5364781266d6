// Package naming makes the names of control plane Machines, which are the host
// names of the nodes.
package naming

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"

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

// Random picks numbers from 0 to n-1.
type Random interface {
	IntN(n int) int
}

// MachineName makes a name by a naming template; an empty one means the
// default. The error says what is wrong with the template.
func MachineName(naming, cluster, controlPlane string, random Random) (string, error) {
	name, err := execute(naming, cluster, controlPlane, randomString(random))
	if err != nil {
		return "", err
	}
	if len(name) <= maxLength {
		return name, nil
	}

	return strings.ToValidUTF8(name[:maxLength-randomLength], "") + randomString(random), nil
}

// Example is a name that a naming template may give.
func Example(naming, cluster, controlPlane string) (string, error) {
	return MachineName(naming, cluster, controlPlane, first{})
}

// first always picks the first.
type first struct{}

// IntN implements Random.
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

func randomString(random Random) string {
	var b strings.Builder
	for range randomLength {
		b.WriteByte(alphabet[random.IntN(len(alphabet))])
	}

	return b.String()
}
