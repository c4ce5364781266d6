// Command runtime-wrapper stands in for runc as Docker's runtime on machines
// whose root user lacks CAP_SYS_RESOURCE. Docker asks for that capability, for
// higher limits and for negative OOM scores whenever a container is privileged,
// and the kernel refuses all three there. The wrapper takes them out of the
// container's description and then becomes runc, which it finds in PATH.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// missing is the capability that the machine does not have.
const missing = "CAP_SYS_RESOURCE"

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "runtime-wrapper:", err)
		os.Exit(1)
	}
}

// run rewrites the description that the command line names and replaces this
// process by runc. It returns only when that fails.
func run(args []string) error {
	if file := description(args[1:]); file != "" {
		if err := rewrite(file); err != nil {
			return fmt.Errorf("rewriting %s: %w", file, err)
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("looking for runc: %w", err)
	}
	args[0] = runc
	return syscall.Exec(runc, args, os.Environ()) //nolint:gosec // becoming runc is the purpose
}

// description is the file that says what is to be started: the bundle's
// config.json for create and run, the process file for exec, else empty.
func description(args []string) string {
	command, bundle, process := "", ".", ""
	for i, arg := range args {
		name, value, inline := strings.Cut(arg, "=")
		if !inline && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "create", "run", "exec":
			if command == "" {
				command = name
			}
		case "--bundle", "-b":
			bundle = value
		case "--process", "-p":
			process = value
		}
	}
	switch command {
	case "create", "run":
		return filepath.Join(bundle, "config.json")
	case "exec":
		return process
	default:
		return ""
	}
}

func rewrite(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if content, err = lower(content); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

// lower takes out of a container's or a process' description what the machine
// refuses. Everything else stays as it was, to the digit.
func lower(content []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	var whole map[string]any
	if err := decoder.Decode(&whole); err != nil {
		return nil, err
	}
	process, ok := whole["process"].(map[string]any)
	if !ok {
		process = whole
	}
	if sets, ok := process["capabilities"].(map[string]any); ok {
		for name, set := range sets {
			if list, ok := set.([]any); ok {
				sets[name] = slices.DeleteFunc(list, func(entry any) bool { return entry == missing })
			}
		}
	}
	if score, ok := process["oomScoreAdj"].(json.Number); ok && strings.HasPrefix(score.String(), "-") {
		delete(process, "oomScoreAdj")
	}
	delete(process, "rlimits")
	return json.Marshal(whole)
}
