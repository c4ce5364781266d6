package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestChooseBed(t *testing.T) {
	kinds := func(possible bool) []bedKind {
		can := func() bool { return possible }
		return []bedKind{
			{mode: "container", name: "kind", possible: can},
			{mode: "metal", name: "docker", possible: can},
			{mode: "metal", name: "sim", possible: func() bool { return true }},
		}
	}
	for behaviour, test := range map[string]struct {
		mode, fleet string
		possible    bool
		want        string
		fails       string
	}{
		"the first possible kind without a name":          {possible: true, want: "kind"},
		"falls back by itself":                            {want: "sim"},
		"takes the first kind of a mode":                  {mode: "metal", possible: true, want: "docker"},
		"falls back within a mode":                        {mode: "metal", want: "sim"},
		"takes the named kind":                            {fleet: "sim", possible: true, want: "sim"},
		"takes the named kind though it seems impossible": {fleet: "docker", want: "docker"},
		"takes the mode though it seems impossible":       {mode: "container", want: "kind"},
		"names the kinds when there is no such": {
			fleet: "wrong", fails: "MODE= FLEET=wrong is not known; use one of: MODE=container FLEET=kind, MODE=metal FLEET=docker, MODE=metal FLEET=sim",
		},
		"names the kinds when mode and fleet contradict each other": {
			mode: "container", fleet: "sim", fails: "MODE=container FLEET=sim is not known; use one of: MODE=container FLEET=kind, MODE=metal FLEET=docker, MODE=metal FLEET=sim",
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			kind, err := chooseBed(kinds(test.possible), test.mode, test.fleet)
			if test.fails != "" {
				g.Expect(err).To(MatchError(test.fails))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(kind.name).To(Equal(test.want))
		})
	}
}

func TestLeave(t *testing.T) {
	for behaviour, test := range map[string]struct {
		interrupted bool
		err         error
		logs        bool
		want        string
		stays       bool
	}{
		"removes all after a success":           {logs: true},
		"says last where the logs are":          {logs: true, err: errors.New("broken"), want: "broken\nlogs are in DIR/logs", stays: true},
		"tells that somebody has ended it":      {interrupted: true, logs: true, err: errors.New("canceled"), want: "interrupted: canceled\nlogs are in DIR/logs", stays: true},
		"promises no logs where there are none": {err: errors.New("broken"), want: "broken"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			dir := filepath.Join(t.TempDir(), "demo")
			g.Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
			if test.logs {
				g.Expect(os.Mkdir(filepath.Join(dir, "logs"), 0o755)).To(Succeed())
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.interrupted {
				cancel()
			}
			err := leave(ctx, dir, test.err)
			if test.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(strings.ReplaceAll(test.want, "DIR", dir)))
			}
			if test.stays {
				g.Expect(dir).To(BeADirectory())
			} else {
				g.Expect(dir).NotTo(BeADirectory())
			}
		})
	}
}

func TestThisMachineCanHaveABed(t *testing.T) {
	_, err := chooseBed(bedKinds(), "", "")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}
