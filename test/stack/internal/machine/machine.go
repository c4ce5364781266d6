// Package machine tells what the machine that the test bed runs on has and
// lacks. All that is done only on machines that lack something hangs on what
// is found here.
package machine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// capSysResource is the number of the capability CAP_SYS_RESOURCE.
	capSysResource = 24
	// registry is asked to find out whether images can be pulled.
	registry = "https://registry.k8s.io/v2/"
	// registryTimeout is how long the registry may take to answer.
	registryTimeout = 5 * time.Second
)

// Traits are what the kernel grants on this machine.
type Traits struct {
	// SysResource reports whether root has CAP_SYS_RESOURCE. Without it neither
	// Docker nor Talos can start what they want to start.
	SysResource bool
	// CgroupV1 lists the controllers of version 1 of control groups. It is empty
	// on machines with version 2.
	CgroupV1 []string
}

// Look finds out about this machine.
func Look() Traits {
	return look("/proc/self/status", "/sys/fs/cgroup")
}

func look(status, cgroup string) Traits {
	return Traits{SysResource: hasCapability(status, capSysResource), CgroupV1: cgroupV1(cgroup)}
}

// hasCapability reads the bounding set. What cannot be read counts as had, as
// it is on nearly every machine.
func hasCapability(status string, number uint) bool {
	content, err := os.ReadFile(status)
	if err != nil {
		return true
	}
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for scanner.Scan() {
		digits, ok := strings.CutPrefix(scanner.Text(), "CapBnd:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
		return err != nil || set>>number&1 == 1
	}
	return true
}

func cgroupV1(folder string) []string {
	if _, err := os.Stat(filepath.Join(folder, "cgroup.controllers")); err == nil {
		return nil
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	var controllers []string
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != "unified" {
			controllers = append(controllers, entry.Name())
		}
	}
	slices.Sort(controllers)
	return controllers
}

// RegistryAnswers reports whether images can be pulled on this machine.
func RegistryAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, registry, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	// A registry says so; what else answers there is not one.
	return response.Header.Get("Docker-Distribution-Api-Version") != "" ||
		response.StatusCode == http.StatusOK || response.StatusCode == http.StatusUnauthorized
}

// Uplink is the name of the network interface that leads away from this
// machine: that of the default route.
func Uplink() (string, error) {
	return uplink("/proc/net/route")
}

func uplink(table string) (string, error) {
	content, err := os.ReadFile(table)
	if err != nil {
		return "", fmt.Errorf("reading the routes: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		const destination, mask = 1, 7
		if len(fields) > mask && fields[destination] == "00000000" && fields[mask] == "00000000" {
			return fields[0], nil
		}
	}
	return "", errors.New("looking for the default route: there is none")
}

// Networks lists the networks of this machine's interfaces.
func Networks() ([]*net.IPNet, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this machine: %w", err)
	}
	var networks []*net.IPNet
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok {
			networks = append(networks, network)
		}
	}
	return networks, nil
}
