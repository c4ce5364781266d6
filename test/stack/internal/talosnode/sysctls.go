package talosnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// changed are the kernel's settings that Talos and kubelet set for the whole
// machine, also from within a container.
var changed = []string{ //nolint:gochecknoglobals // a constant table
	"kernel/panic", "kernel/panic_on_oops", "kernel/pid_max", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	"vm/overcommit_memory", "vm/panic_on_oom", "fs/inotify/max_user_instances", "fs/inotify/max_user_watches", "fs/aio-max-nr",
}

// Sysctls are settings of the kernel, as they were.
type Sysctls map[string][]byte

// ReadSysctls reads what real Talos nodes are going to change.
func ReadSysctls() Sysctls { return readSysctls("/proc/sys") }

func readSysctls(root string) Sysctls {
	before := Sysctls{}
	for _, name := range changed {
		// Not every kernel has all of them.
		if content, err := os.ReadFile(filepath.Join(root, name)); err == nil {
			before[filepath.Join(root, name)] = content
		}
	}
	return before
}

// Script is what the shell does to write them back, when this process cannot.
func (s Sysctls) Script() string {
	var script strings.Builder
	for path, content := range s {
		fmt.Fprintf(&script, "echo '%s' > %s\n", strings.TrimSpace(string(content)), path)
	}
	return script.String()
}

// Restore writes them back.
func (s Sysctls) Restore() error {
	var failures []error
	for path, content := range s {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			failures = append(failures, fmt.Errorf("giving a setting of the kernel back: %w", err))
		}
	}
	return errors.Join(failures...)
}
