package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"filippo.io/age"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

const (
	// attemptNameLength is how many letters tell an attempt from others.
	attemptNameLength = 10
	// leftoverAge is how old what attempts have left behind must be to be deleted: older
	// than any backup may take, and than a cache of which backups are made ever is.
	leftoverAge = 48 * time.Hour
	// identityLength is how many hex digits of a digest tell clusters apart.
	identityLength = 32
)

// stepText says what a job is doing.
func stepText(step metrics.Step) string {
	switch step {
	case metrics.StepBackUp:
		return "the snapshot is being taken and stored"
	case metrics.StepVerify:
		return "what was stored is being verified"
	case metrics.StepDelete:
		return "the data is being deleted"
	case metrics.StepCheckRestore, metrics.StepSend: // Those of restores.
	}

	return "the backup is looked for in the store"
}

// Result is how a job has ended.
type Result struct {
	// Manifest is the backup, if it is complete.
	Manifest *archive.Manifest
	// Level is how it was to be verified, and Request the annotation that has asked for
	// that; Verified is when it was, and Report what was found; nothing when it was not.
	Level    backupv1.VerificationLevel
	Request  string
	Verified time.Time
	Report   *verify.Report
	// Removal reports whether the data was to be deleted, Deleted whether nothing of it is in
	// the store, and Removed whether something of it was. Again reports whether it was recorded
	// that something was found there before: a former job may have deleted it.
	Removal, Deleted, Removed, Again bool
	// Found is the place at which there is something to delete, where that is not recorded yet:
	// nothing is deleted before. It is empty otherwise.
	Found string
	// Lost reports whether the store does not have the backup though it should.
	Lost bool
	// Err is what went wrong.
	Err error
}

// attempt is one try to make a backup, to find it, or to delete it.
type attempt struct {
	name    string
	clock   clock.PassiveClock
	metrics *metrics.Metrics
	archive *archive.Archive
	// deletions counts what it deletes at a place.
	deletions *deletions
	place     string
	draft     archive.Manifest
	// verifier verifies the backup at a level, with private keys, because a request asks for
	// that; what it finds is stored unless the store is only read.
	verifier   Verifier
	level      backupv1.VerificationLevel
	request    string
	identities []age.Identity
	isReadOnly bool
	// take is how the snapshot is taken; nil where the backup is to be there already.
	take *take
	// made finds the names of the backups of the cluster that are to be in the store. It is called
	// only where take is not nil.
	made func(ctx context.Context) (map[string]bool, error)
}

// errNotRecorded says that there is something to delete, and that this is to be recorded first.
var errNotRecorded = errors.New("what is to be deleted is not recorded yet")

// deletions is a store that counts what it says is deleted. One that is only looked at deletes
// nothing.
type deletions struct {
	archive.Store

	onlyLooks bool
	done      int
}

// Delete deletes an object of the store.
func (d *deletions) Delete(ctx context.Context, key, versionID string) error {
	if d.onlyLooks {
		return errNotRecorded
	}
	err := d.Store.Delete(ctx, key, versionID)
	if err == nil {
		d.done++
	}

	return err
}

// in says where the backup is.
func (a *attempt) in(s *backupScope) error {
	a.draft.UID, a.deletions, a.place = s.backup.Annotations[backupv1.IDAnnotation], &deletions{Store: s.opened}, placeOf(s.store)
	var err error
	a.archive, err = archive.Of(clusterOf(s.backup), a.deletions, s.opened.Prefix)

	return err
}

// archiveOf is where a backup is in a store.
func archiveOf(backup *backupv1.TalosEtcdBackup, opened *stores.Opened) (*archive.Archive, error) {
	return archive.Of(clusterOf(backup), opened, opened.Prefix)
}

// clusterOf is the cluster of a backup.
func clusterOf(backup *backupv1.TalosEtcdBackup) archive.Cluster {
	return archive.Cluster{Namespace: backup.Namespace, Name: backup.Spec.ClusterName, Identity: backup.Annotations[backupv1.ClusterIdentityAnnotation]}
}

// identityOf is the identity of a cluster, by the CA of its Talos API.
func identityOf(bundle *secrets.Bundle) string {
	sum := sha256.Sum256(bundle.TalosCA())

	return hex.EncodeToString(sum[:])[:identityLength]
}

// run makes the backup, if it is not there, and reads it back.
func (a *attempt) run(ctx context.Context, progress func(metrics.Step)) Result {
	manifest, err := a.find(ctx)
	if store.ReasonOf(err) == store.NotFound {
		if a.take == nil {
			return Result{Lost: true, Err: err}
		}
		err = a.step(metrics.StepBackUp, progress, func() (err error) {
			manifest, err = a.backUp(ctx)
			return err
		})
	}
	if err != nil {
		return Result{Err: err}
	}
	result := Result{Manifest: manifest, Level: a.level, Request: a.request}
	result.Err = a.step(metrics.StepVerify, progress, func() error { return a.verify(ctx, &result) })
	if a.take != nil {
		a.collect(ctx)
	}

	return result
}

// collect deletes what other attempts have left behind. That is no reason to fail.
func (a *attempt) collect(ctx context.Context) {
	made, err := a.made(ctx)
	if err != nil {
		ctrl.LoggerFrom(ctx).Info("Deleting nothing of what attempts have left behind", "error", err.Error())
		return
	}
	if done, err := a.archive.Collect(ctx, a.clock.Now().Add(-leftoverAge), made); err != nil || done != (archive.Collected{}) {
		ctrl.LoggerFrom(ctx).Info("Deleted what attempts have left behind", "files", done.Files, "uploads", done.Uploads, "error", fmt.Sprint(err))
	}
}

// step does a step, and counts it. A deletion is counted by the job that deletes.
func (a *attempt) step(step metrics.Step, progress func(metrics.Step), do func() error) error {
	progress(step)
	began := a.clock.Now()
	err := do()
	if !errors.Is(err, errNotRecorded) {
		a.metrics.Ended(step, a.clock.Since(began), err)
	}

	return err
}

// find looks for the backup. One with another ID is somebody else's.
func (a *attempt) find(ctx context.Context) (*archive.Manifest, error) {
	manifest, err := a.archive.Read(ctx, a.draft.Name)
	if err != nil {
		return nil, err
	}
	if manifest.UID != a.draft.UID {
		return nil, store.NewError(store.Exists, "storing backup "+a.draft.Name, errors.New("the store has another backup of that name; make one of another name"))
	}

	return manifest, nil
}

// backUp takes a snapshot and stores it.
func (a *attempt) backUp(ctx context.Context) (*archive.Manifest, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	draft := a.draft
	draft.Begun = a.clock.Now().UTC()
	taken, err := a.take.taker.Take(ctx, a.take.machines, a.take.credentials, a.take.failures)
	if err != nil {
		return nil, err
	}
	draft.Member, draft.Machine, draft.RaftIndex = taken.Member, taken.Machine.Name, taken.RaftIndex
	draft.TalosVersion, draft.EtcdVersion, draft.KubernetesVersion = taken.TalosVersion, taken.EtcdVersion, taken.Machine.Spec.Version
	draft.Recipients = a.take.keys
	manifest, err := a.archive.Write(ctx, draft, a.name, archive.Contents{Snapshot: taken, Secrets: a.take.secrets, Recipients: a.take.recipients, Ended: a.clock.Now})
	if err != nil {
		return nil, fmt.Errorf("storing the snapshot of Machine %s: %w", taken.Machine.Name, err)
	}
	a.metrics.Stored(manifest.Data.PlainBytes, manifest.Data.StoredBytes)

	return manifest, nil
}

// remove deletes the data of the backup, and nothing of another one. Where it is not recorded yet
// that something of it was found at this place, it only looks.
func (a *attempt) remove(ctx context.Context, progress func(metrics.Step)) Result {
	err := a.step(metrics.StepDelete, progress, func() error {
		_, err := a.find(ctx)
		reason := store.ReasonOf(err)
		if reason == store.Exists {
			return nil
		}
		// What an attempt has left that was not ended goes, too.
		if err == nil || reason == store.NotFound {
			err = a.archive.Delete(ctx, a.draft.Name)
		}

		return err
	})
	if errors.Is(err, errNotRecorded) {
		return Result{Removal: true, Found: a.place}
	}

	return Result{Removal: true, Deleted: err == nil, Removed: a.deletions.done > 0, Again: !a.deletions.onlyLooks, Err: err}
}
