package backends

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Random picks numbers from 0 to n-1.
type Random interface {
	IntN(n int) int
}

// Jitter is a duration between d and 1.25 d.
func Jitter(random Random, d time.Duration) time.Duration {
	const steps = 1000

	return d + d/4*time.Duration(random.IntN(steps))/steps
}

// MintProviderID makes a new provider ID out of the injected randomness.
func MintProviderID(random Random) (string, error) {
	id, err := uuid.NewRandomFromReader(randomReader{random})
	if err != nil {
		return "", fmt.Errorf("making a provider ID: %w", err)
	}

	return infrav1.ProviderIDPrefix + id.String(), nil
}

type randomReader struct{ random Random }

func (r randomReader) Read(p []byte) (int, error) {
	const values = 256
	for i := range p {
		p[i] = byte(r.random.IntN(values)) //nolint:gosec // G115: below 256.
	}

	return len(p), nil
}
