package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/minio/minio-go/v7"
)

// nullVersion is the version of objects in a bucket without versions.
const nullVersion = "null"

// Stat returns the newest object of a key.
func (s *Store) Stat(ctx context.Context, key string) (Object, error) {
	found, err := s.core.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{ServerSideEncryption: s.customerKey})
	if err != nil {
		return Object{}, judge("looking at "+key, err)
	}

	return objectOf(found), nil
}

// Get reads a version of an object; an empty version is the newest one. The caller closes
// it, and an error while it is read is one of the store.
func (s *Store) Get(ctx context.Context, key, versionID string) (io.ReadCloser, Object, error) {
	body, found, _, err := s.core.GetObject(ctx, s.bucket, key, minio.GetObjectOptions{ServerSideEncryption: s.customerKey, VersionID: versionID})
	if err != nil {
		return nil, Object{}, judge("reading "+key, err)
	}

	return &reading{ReadCloser: body, key: key, left: found.Size}, objectOf(found), nil
}

// GetSmall reads a whole object, and fails for one of more than a limit of bytes.
func (s *Store) GetSmall(ctx context.Context, key, versionID string, limit int64) ([]byte, Object, error) {
	body, found, err := s.Get(ctx, key, versionID)
	if err != nil {
		return nil, Object{}, err
	}
	defer func() { _ = body.Close() }()
	// A server need not say how long an object is.
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, Object{}, err
	}
	if int64(len(data)) > limit {
		return nil, Object{}, fmt.Errorf("reading %s: it has more than %d bytes", key, limit)
	}

	return data, found, nil
}

// reading is the body of an object. Its end is one only if all of it has come.
type reading struct {
	io.ReadCloser

	key  string
	left int64
}

// Read implements io.Reader.
func (r *reading) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.left -= int64(n)
	if errors.Is(err, io.EOF) && r.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = judge("reading "+r.key, err)
	}

	return n, err
}

// List returns all versions of all objects whose keys begin so, and those of one key one after
// the other, the newest first. It ends with the first error, and with one where the server does
// not come to an end, or the context does before the list.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		var last Object
		for found := range s.core.ListObjectsIter(listing(ctx), s.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true, WithVersions: true, MaxKeys: pageSize}) {
			if found.Err == nil && (len(found.Key) > maxName || len(found.VersionID) > maxName) {
				found.Err = errName
			}
			if found.Err != nil {
				yield(Object{}, judge("listing "+prefix, found.Err))
				return
			}
			// Some servers begin a page with the last one of the page before.
			object := objectOf(found)
			if object.Key == last.Key && object.VersionID == last.VersionID {
				continue
			}
			last = object
			if !yield(object, nil) {
				return
			}
		}
		// The library ends without a word when the context does.
		if err := ctx.Err(); err != nil {
			yield(Object{}, judge("listing "+prefix, err))
		}
	}
}

// Delete deletes a version of an object for good. It is no error if there is none. A
// version that is locked is an error with the reason Locked.
func (s *Store) Delete(ctx context.Context, key, versionID string) error {
	if versionID == "" {
		return fmt.Errorf("deleting %s: without a version it would be hidden only", key)
	}
	err := s.core.RemoveObject(ctx, s.bucket, key, minio.RemoveObjectOptions{VersionID: versionID})
	if err == nil {
		return nil
	}
	err = judge("deleting "+key, err)
	if ReasonOf(err) == NotFound {
		return nil
	}
	// S3 says of a locked version what it says of a missing right.
	if ReasonOf(err) == Denied {
		if until := s.lockedUntil(ctx, key, versionID); until.After(s.now()) {
			return NewError(Locked, "deleting "+key, fmt.Errorf("it is locked until %s", until.UTC().Format(time.RFC3339)))
		}
	}

	return err
}

// lockedUntil is until when a version can't be deleted; zero where that is not known. Any
// server says it of an object; that of retention alone is not the same for all.
func (s *Store) lockedUntil(ctx context.Context, key, versionID string) time.Time {
	found, err := s.core.StatObject(ctx, s.bucket, key, minio.StatObjectOptions{ServerSideEncryption: s.customerKey, VersionID: versionID})
	if err != nil {
		return time.Time{}
	}
	until, err := time.Parse(time.RFC3339, found.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date"))
	if err != nil {
		return time.Time{}
	}

	return until
}

// Unfinished is an upload that has neither been ended nor given up.
type Unfinished struct {
	// Key is what would be uploaded, ID the upload, and Begun when it began.
	Key, ID string
	Begun   time.Time
}

// Unfinished returns the uploads to keys that begin so. If it cannot list all of them, it
// returns the first ones beside the error: they can be given up, and some servers fail at the
// second page.
func (s *Store) Unfinished(ctx context.Context, prefix string) ([]Unfinished, error) {
	ctx, doing := listing(ctx), "listing unfinished uploads of "+prefix
	var all []Unfinished
	for marker, idMarker := "", ""; ; {
		page, err := s.core.ListMultipartUploads(ctx, s.bucket, prefix, marker, idMarker, "", pageSize)
		if err != nil {
			return all, judge(doing, err)
		}
		for _, upload := range page.Uploads {
			if len(upload.Key) > maxName || len(upload.UploadID) > maxName {
				return all, judge(doing, errName)
			}
			if len(all) == maxUnfinished {
				return all, judge(doing, fmt.Errorf("there are more than %d", maxUnfinished))
			}
			all = append(all, Unfinished{Key: upload.Key, ID: upload.UploadID, Begun: upload.Initiated})
		}
		if !page.IsTruncated {
			return all, nil
		}
		marker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// Abort gives an upload up. It is no error if there is none.
func (s *Store) Abort(ctx context.Context, key, id string) error {
	err := s.core.AbortMultipartUpload(ctx, s.bucket, key, id)
	if err == nil {
		return nil
	}
	if err = judge("giving up an upload of "+key, err); ReasonOf(err) == NotFound {
		return nil
	}

	return err
}

func objectOf(info minio.ObjectInfo) Object {
	object := Object{Key: info.Key, VersionID: info.VersionID, Bytes: info.Size, Modified: info.LastModified, Deleted: info.IsDeleteMarker, attempt: info.UserMetadata[attemptKey]}
	if object.VersionID == "" {
		object.VersionID = nullVersion
	}

	return object
}
