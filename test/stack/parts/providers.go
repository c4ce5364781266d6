package parts

import "github.com/capi-talos/capi-talos/test/support/providers"

// Providers are ours, as the repository lists them.
func Providers() ([]providers.Provider, error) {
	source, err := SourceDir()
	if err != nil {
		return nil, err
	}
	return providers.Read(source)
}
