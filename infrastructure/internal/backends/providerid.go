package backends

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// MintProviderID makes a new provider ID out of the injected randomness.
func MintProviderID(random requeue.Random) (string, error) {
	id, err := uuid.NewRandomFromReader(randomReader{random})
	if err != nil {
		return "", fmt.Errorf("making a provider ID: %w", err)
	}

	return infrav1.ProviderIDPrefix + id.String(), nil
}

type randomReader struct{ random requeue.Random }

func (r randomReader) Read(p []byte) (int, error) {
	const values = 256
	for i := range p {
		p[i] = byte(r.random.IntN(values)) //nolint:gosec // G115: below 256.
	}

	return len(p), nil
}
