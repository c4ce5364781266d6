package parts

// storeVersion is the release of the S3 server of the test bed, which keeps objects in
// folders.
const storeVersion = "v1.8.0"

// minioVersion is that of the S3 server that encrypts what it keeps.
const minioVersion = "v0.0.0-20260212201848-7aac2a2c5b7c"

// ageVersion is the release of the programs with which people make keys, and read encrypted
// backups.
const ageVersion = "v1.3.1"

// etcdReleases are the releases of etcd whose programs the backup provider runs, with the
// versions that the modules in backup/etcd pin.
var etcdReleases = []struct{ name, version string }{{"3.6", "v3.6.16"}, {"3.7", "v3.7.3"}}

// storeParts are what backups are put into, and looked at with.
func storeParts() []Part {
	all := []Part{{
		Name:     "versitygw",
		Version:  storeVersion,
		Module:   "versitygw",
		Commands: []Command{{Package: "github.com/versity/versitygw/cmd/versitygw", Binary: "versitygw"}},
	}}
	all = append(all, Part{Name: "minio", Version: minioVersion, Module: "minio", Commands: []Command{{Package: "github.com/minio/minio", Binary: "minio"}}})
	all = append(all, Part{Name: "age", Version: ageVersion, Module: "age", Commands: []Command{
		{Package: "filippo.io/age/cmd/age", Binary: "age"}, {Package: "filippo.io/age/cmd/age-keygen", Binary: "age-keygen"},
	}})
	for _, release := range etcdReleases {
		all = append(all, Part{
			Name:    EtcdProgramsPart(release.name),
			Version: release.version,
			// It is part of the product, and not of the test bed.
			Module:   "../../../../backup/etcd/" + release.name,
			Commands: []Command{{Package: "go.etcd.io/etcd/etcdutl/v3", Binary: "etcdutl-" + release.name}, {Package: "go.etcd.io/etcd/server/v3", Binary: "etcd-" + release.name}},
		})
	}
	return all
}

// EtcdProgramsPart is the part with the programs of a release of etcd: 3.6.
func EtcdProgramsPart(release string) string { return "etcd-programs-" + release }
