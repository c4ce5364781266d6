package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// Found is a backup that a store has.
type Found struct {
	Cluster Cluster
	Name    string
}

// Probe returns a key at which a namespace has nothing, and may have something: it is for
// finding out whether a store can be written to.
func Probe(prefix, namespace string) (string, error) {
	folder, err := folderOf(prefix, namespace)
	if err != nil {
		return "", err
	}

	return folder + "probe", nil
}

// folderOf is the folder of a namespace, with a slash at its end.
func folderOf(prefix, namespace string) (string, error) {
	if !segment.MatchString(namespace) {
		return "", fmt.Errorf("%q cannot be a folder of a store", namespace)
	}

	return path.Join(strings.Trim(prefix, "/"), top, namespace) + "/", nil
}

// All returns the backups of all clusters of a namespace below a prefix, as their manifests
// are there. It reads none of them, and ends with the first error.
func All(ctx context.Context, in Store, prefix, namespace string) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		folder, err := folderOf(prefix, namespace)
		if err != nil {
			yield(Found{}, err)
			return
		}
		var last string
		for object, err := range in.List(ctx, folder) {
			if err != nil {
				yield(Found{}, err)
				return
			}
			// The newest version of a key comes first.
			first := object.Key != last
			last = object.Key
			at, ok := parse(prefix, object.Key)
			if !ok || at.file != manifestFile || !first || object.Deleted {
				continue
			}
			if !yield(Found{Cluster: at.cluster, Name: at.backup}, nil) {
				return
			}
		}
	}
}

// files are all versions of all files of a backup, or of what is left of one.
type files []store.Object

// isBackup reports whether there is a manifest. The newest version of a file comes first.
func (f files) isBackup() bool {
	newest := slices.IndexFunc(f, isManifest)

	return newest >= 0 && !f[newest].Deleted
}

func isManifest(file store.Object) bool { return path.Base(file.Key) == manifestFile }

// maxFiles is how many files a cluster may have, in all their versions: those of hourly backups
// for two years, which take some 50 MiB when they are listed.
const maxFiles = 100_000

// list returns what is below a folder, by the names of backups.
func (a *Archive) list(ctx context.Context, folder string) (map[string]files, error) {
	found, count := map[string]files{}, 0
	for object, err := range a.store.List(ctx, folder) {
		if err != nil {
			return nil, err
		}
		if count++; count > maxFiles {
			return nil, fmt.Errorf("listing %s: there are more than %d files", folder, maxFiles)
		}
		if at, ok := parse(a.prefix, object.Key); ok && at.cluster == a.cluster {
			found[at.backup] = append(found[at.backup], object)
		}
	}

	return found, nil
}

// errNotListed says that a list lacks a manifest that is there.
var errNotListed = errors.New("the list of the server lacks the manifest, which is there; nothing is deleted")

// Delete deletes a backup: its manifest first, then all versions of all its files. It is
// no error if there is none. If the manifest can't be deleted, as when it is locked, all
// of it stays.
func (a *Archive) Delete(ctx context.Context, backup string) error {
	folder, err := a.key(backup, "")
	if err != nil {
		return err
	}
	found, err := a.list(ctx, folder+"/")
	if err != nil {
		return err
	}
	all := found[backup]
	if !slices.ContainsFunc(all, isManifest) {
		if _, err := a.Read(ctx, backup); store.ReasonOf(err) != store.NotFound {
			return errors.Join(errNotListed, err)
		}
	}
	slices.SortStableFunc(all, func(a, b store.Object) int { return cmp.Compare(order(a), order(b)) })
	for _, object := range all {
		if err := a.store.Delete(ctx, object.Key, object.VersionID); err != nil {
			return err
		}
	}

	return nil
}

// order is when a file of a backup is to be deleted. A mark that hides older manifests
// goes after these: they would be back without it.
func order(object store.Object) int {
	switch {
	case !isManifest(object):
		return 2
	case object.Deleted:
		return 1
	}

	return 0
}

// Collected counts what was left behind, and is gone.
type Collected struct {
	// Files are files that no manifest names, and Uploads uploads that were never ended.
	Files, Uploads int
}

// Collect deletes what attempts before a time have left behind: files that are part of no
// backup, and uploads that were neither ended nor given up. It leaves alone what is locked,
// and a backup whose manifest somebody has hidden: versions are there for that. So it does with
// one of those that are known to be made, whose manifest is gone: it may be brought back. It goes
// on after an error, and returns what it has done with all of them.
func (a *Archive) Collect(ctx context.Context, before time.Time, made map[string]bool) (Collected, error) {
	var done Collected
	folders, err := a.list(ctx, a.folder)
	failed := []error{err}
	for backup, found := range folders {
		left, err := a.leftovers(ctx, backup, found, made[backup])
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, file := range left {
			if !file.Modified.Before(before) {
				continue
			}
			switch err := a.store.Delete(ctx, file.Key, file.VersionID); {
			case err == nil:
				done.Files++
			case store.ReasonOf(err) != store.Locked:
				failed = append(failed, err)
			}
		}
	}
	uploads, err := a.store.Unfinished(ctx, a.folder)
	failed = append(failed, err)
	for _, upload := range uploads {
		if !strings.HasPrefix(upload.Key, a.folder) || !upload.Begun.Before(before) {
			continue
		}
		if err := a.store.Abort(ctx, upload.Key, upload.ID); err != nil {
			failed = append(failed, err)
			continue
		}
		done.Uploads++
	}

	return done, errors.Join(failed...)
}

// leftovers are the files of a folder that belong to no backup. A list may lack a manifest that
// is there: only an answer about the manifest itself says that there is none.
func (a *Archive) leftovers(ctx context.Context, backup string, found files, isMade bool) (files, error) {
	isListed := found.isBackup()
	if !isListed && slices.ContainsFunc(found, isManifest) {
		return nil, nil
	}
	manifest, err := a.Read(ctx, backup)
	switch {
	case err == nil:
		return slices.DeleteFunc(found, func(file store.Object) bool { return manifest.names(path.Base(file.Key)) }), nil
	case store.ReasonOf(err) != store.NotFound || isListed:
		return nil, fmt.Errorf("reading which files are of backup %s: %w", backup, err)
	case isMade:
		return nil, nil
	}

	return found, nil
}

// names reports whether a file of its folder belongs to a backup. What is verified of it does.
func (m *Manifest) names(file string) bool {
	return file == manifestFile || file == m.Data.Name || m.Secrets != nil && file == m.Secrets.Name || strings.HasPrefix(file, verificationFile)
}
