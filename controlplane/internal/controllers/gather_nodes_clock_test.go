package controllers

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// TestAStepThatFailsForAClockSaysSo: a bootstrap, a leave or the removal of a member.
func TestAStepThatFailsForAClockSaysSo(t *testing.T) {
	g := NewWithT(t)
	silent := errors.New("connecting to the Talos API at 10.0.0.1: no route to host")
	early := fmt.Errorf("connecting to the Talos API at 10.0.0.2: %w", fmt.Errorf("%w: %w", talosclient.ErrClock, errors.New("remote error")))
	g.Expect(explain(fmt.Errorf("bootstrapping etcd on Machine a: %w", errors.Join(silent, early)))).To(Equal(health.WrongClockText))
	g.Expect(explain(fmt.Errorf("bootstrapping etcd on Machine a: %w", silent))).NotTo(ContainSubstring("clock"))
}
