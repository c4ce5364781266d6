// Package machinery_test judges rendered machine configurations by the loader
// of Talos v1.14.
package machinery_test

import (
	"errors"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/capi-talos/capi-talos/test/suites/machinery/judge"
)

func TestTalosV114AcceptsWhatWeRender(t *testing.T) {
	judge.Run(t, judge.Loader{
		Minor: 14,
		Judge: func(configuration []byte, mode judge.Mode) error {
			loaded, err := configloader.NewFromBytes(configuration)
			if err != nil {
				return err
			}
			_, err = loaded.Validate(mode)

			return err
		},
		Document: func(document []byte) (any, error) {
			loaded, err := configloader.NewFromBytes(document)
			if err != nil {
				return nil, err
			}
			if len(loaded.Documents()) != 1 {
				return nil, errors.New("it is not one document")
			}

			return loaded.Documents()[0], nil
		},
	})
}
