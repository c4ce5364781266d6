package parts

// storeVersion is the release of the S3 server of the test bed, which keeps objects in
// folders.
const storeVersion = "v1.8.0"

// storeParts are what backups are put into.
func storeParts() []Part {
	return []Part{{
		Name:     "versitygw",
		Version:  storeVersion,
		Module:   "versitygw",
		Commands: []Command{{Package: "github.com/versity/versitygw/cmd/versitygw", Binary: "versitygw"}},
	}}
}
