package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const list = `{"name": "ignored", "providers": [
	{"name": "bootstrap-x", "config": {"componentsFile": "bootstrap-components.yaml", "nextVersion": "v1.0.0"}},
	{"name": "infrastructure-x", "config": {"componentsFile": "infrastructure-components.yaml", "nextVersion": "v1.0.0"}},
	{"name": "addon-x-backup", "config": {"componentsFile": "backup-components.yaml", "nextVersion": "v1.0.0"}}
]}`

// write makes files whose content is their name.
func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEachProviderGetsWhatClusterctlReads(t *testing.T) {
	dir, repository := t.TempDir(), filepath.Join(t.TempDir(), "repository")
	write(t, dir, "bootstrap-components.yaml", "infrastructure-components.yaml", "backup-components.yaml", "metadata.yaml", "cluster-template.yaml", "clusterclass-one.yaml")
	file := filepath.Join(dir, "settings.json")
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := layOut(file, dir, repository, "v1.2.3"); err != nil {
		t.Fatal(err)
	}
	for name, present := range map[string]bool{
		"bootstrap-x/v1.2.3/bootstrap-components.yaml":           true,
		"bootstrap-x/v1.2.3/metadata.yaml":                       true,
		"bootstrap-x/v1.2.3/cluster-template.yaml":               false,
		"infrastructure-x/v1.2.3/infrastructure-components.yaml": true,
		"infrastructure-x/v1.2.3/metadata.yaml":                  true,
		"infrastructure-x/v1.2.3/cluster-template.yaml":          true,
		"infrastructure-x/v1.2.3/clusterclass-one.yaml":          true,
		"addon-x-backup/v1.2.3/backup-components.yaml":           true,
		"addon-x-backup/v1.2.3/metadata.yaml":                    true,
		"addon-x-backup/v1.2.3/cluster-template.yaml":            false,
	} {
		if _, err := os.Stat(filepath.Join(repository, name)); (err == nil) != present {
			t.Errorf("%s: present should be %t, but: %v", name, present, err)
		}
	}
}

func TestAMissingFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "bootstrap-components.yaml", "metadata.yaml")
	file := filepath.Join(dir, "settings.json")
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	err := layOut(file, dir, filepath.Join(dir, "repository"), "")
	if err == nil || !strings.Contains(err.Error(), "infrastructure-components.yaml") {
		t.Errorf("the missing file should be named, but: %v", err)
	}
}
