// Package archive keeps the backups of clusters in a store: where each file is, in which
// order files come and go, and which of them make a backup. A backup is there when its
// manifest is, and the manifest comes last and goes first.
package archive

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

const (
	// top is the folder of all backups in a store. It keeps the names of clusters apart
	// from the prefix that a user has chosen.
	top = "clusters"
	// manifestFile is what makes a backup.
	manifestFile = "manifest.json"
	// dataFile and secretsFile begin the names of files that an attempt has made, whose
	// name follows.
	dataFile    = "data-"
	secretsFile = "secrets-"
	// verificationFile begins the names of what verifications have found, and their time
	// follows.
	verificationFile = "verification-"
)

// segment is what may be a folder: the name of an object of Kubernetes, and nothing with
// which another folder could be meant.
var segment = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// Cluster is whose backups something is about.
type Cluster struct {
	// Namespace and Name are those of the Cluster.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Identity tells it from others of the same name, before or elsewhere: a digest in hex
	// of the CA of its Talos API, which lives as long as the cluster does.
	Identity string `json:"identity"`
}

// folder is the folder of a cluster, with a slash at its end: no name begins as another
// one with it.
func (c Cluster) folder(prefix string) (string, error) {
	for _, part := range []string{c.Namespace, c.Name, c.Identity} {
		if !segment.MatchString(part) {
			return "", fmt.Errorf("%q cannot be a folder of a store", part)
		}
	}

	return path.Join(strings.Trim(prefix, "/"), top, c.Namespace, c.Name, c.Identity) + "/", nil
}

// place is where something is.
type place struct {
	cluster Cluster
	// backup is the name of a backup, and file that of a file of it.
	backup, file string
}

// parse says where a key is; false where it is no place of a backup.
func parse(prefix, key string) (place, bool) {
	if root := strings.Trim(prefix, "/"); root != "" {
		var below bool
		if key, below = strings.CutPrefix(key, root+"/"); !below {
			return place{}, false
		}
	}
	parts := strings.Split(key, "/")
	if len(parts) != 6 || parts[0] != top {
		return place{}, false
	}
	for _, part := range parts[1:5] {
		if !segment.MatchString(part) {
			return place{}, false
		}
	}

	return place{cluster: Cluster{Namespace: parts[1], Name: parts[2], Identity: parts[3]}, backup: parts[4], file: parts[5]}, true
}

// verificationName is the name of the file of a verification.
func verificationName(at time.Time) string {
	return verificationFile + at.UTC().Format("20060102T150405Z") + ".json"
}
