package store

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // G501: S3 wants it to check what arrives. Nothing is trusted for it.
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"
)

const (
	// cleanUpTimeout is how long the end of an upload may take that is given up.
	cleanUpTimeout = 30 * time.Second
	// attemptKey is the metadata of an object that tells whose attempt has made it.
	attemptKey = "Capi-Talos-Attempt"
)

// Object is what is stored under a key.
type Object struct {
	// Key is its key, and VersionID its version; "null" in a bucket without versions.
	Key, VersionID string
	// Bytes is its size, and Modified when it was stored.
	Bytes    int64
	Modified time.Time
	// Deleted reports whether it is the mark that says that the object was deleted.
	Deleted bool
	// attempt is whose attempt it is.
	attempt string
}

// Upload stores a stream of any length under a key that has no object yet. The attempt is
// a name that nobody else gives: it tells an object that this very call has made, and
// whose answer was lost, from that of anybody else, which is an error with the reason
// Exists. If the stream fails, its error is returned, and nothing is stored.
func (s *Store) Upload(ctx context.Context, key, attempt string, data io.Reader) (Object, error) {
	options := s.options(map[string]string{attemptKey: attempt})
	id, err := s.core.NewMultipartUpload(ctx, s.bucket, key, options)
	if err != nil {
		return Object{}, judge("beginning to upload "+key, err)
	}
	parts, size, err := s.uploadParts(ctx, key, id, data)
	if err != nil {
		return Object{}, errors.Join(err, s.giveUp(ctx, key, id))
	}
	completion := minio.PutObjectOptions{ServerSideEncryption: s.customerKey}
	completion.SetMatchETagExcept("*")
	if _, err := s.core.CompleteMultipartUpload(ctx, s.bucket, key, id, parts, completion); err != nil {
		return s.settle(ctx, key, id, attempt, size, judge("ending the upload of "+key, err))
	}

	return s.own(ctx, key, attempt, size)
}

// settle finds out what has become of an upload whose end has failed, as far as is known
// here: the answer may be lost, or one of another request for the same.
func (s *Store) settle(ctx context.Context, key, id, attempt string, size int64, failure error) (Object, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	found, err := s.own(ctx, key, attempt, size)
	if err == nil {
		return found, nil
	}
	if reason := ReasonOf(err); reason == Exists {
		failure = err
	} else if reason != NotFound {
		failure = errors.Join(failure, err)
	}

	return Object{}, errors.Join(failure, s.giveUp(ctx, key, id))
}

// own is the object of an attempt.
func (s *Store) own(ctx context.Context, key, attempt string, size int64) (Object, error) {
	found, err := s.Stat(ctx, key)
	if err != nil {
		return Object{}, err
	}
	if found.attempt != attempt || found.Bytes != size {
		return Object{}, NewError(Exists, "uploading "+key, errors.New("another object has that key"))
	}

	return found, nil
}

// giveUp aborts an upload, also where its caller is ending.
func (s *Store) giveUp(ctx context.Context, key, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()

	return s.Abort(ctx, key, id)
}

// uploadParts sends a stream in parts, and returns these and the size of all.
func (s *Store) uploadParts(ctx context.Context, key, id string, data io.Reader) ([]minio.CompletePart, int64, error) {
	group, uploading := errgroup.WithContext(ctx)
	inMemory := make(chan struct{}, partsInMemory)
	sent := &sentParts{}
	var size int64
	var failed error
	for number, more := 1, true; more && uploading.Err() == nil; number++ {
		inMemory <- struct{}{}
		next := newPart()
		if more, failed = next.fill(data); failed == nil && number > maxParts {
			failed = fmt.Errorf("uploading %s: it is larger than %d parts of %d bytes", key, maxParts, partSize)
		}
		// An upload has a part, also when there is nothing to upload.
		if failed != nil || next.size == 0 && number > 1 {
			next.release()
			break
		}
		size += int64(next.size)
		group.Go(func() error {
			defer func() { <-inMemory }()
			defer next.release()

			return s.uploadPart(uploading, key, id, number, next, sent)
		})
	}
	// Where both have failed, the end of the stream comes of the end of the upload.
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	if failed != nil {
		return nil, 0, failed
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, fmt.Errorf("uploading %s: %w", key, err)
	}

	return sent.inOrder(), size, nil
}

func (s *Store) uploadPart(ctx context.Context, key, id string, number int, part *part, sent *sentParts) error {
	data := part.data[:part.size]
	options := minio.PutObjectPartOptions{SSE: s.encryption, Md5Base64: md5Of(data), DisableContentSha256: s.secure}
	if !s.secure {
		options.Sha256Hex = sha256Of(data)
	}
	stored, err := s.core.PutObjectPart(ctx, s.bucket, key, id, number, bytes.NewReader(data), int64(len(data)), options)
	if err != nil {
		return judge(fmt.Sprintf("uploading part %d of %s", number, key), err)
	}
	sent.add(minio.CompletePart{PartNumber: number, ETag: stored.ETag})

	return nil
}

// Put stores a small file under a key that has no object yet. If the key has the same
// file already, that is returned: what was lost is the answer. Any other one is an error
// with the reason Exists.
func (s *Store) Put(ctx context.Context, key string, data []byte) (Object, error) {
	digest := sha256Of(data)
	options := s.options(map[string]string{attemptKey: digest})
	options.SetMatchETagExcept("*")
	_, err := s.core.PutObject(ctx, s.bucket, key, bytes.NewReader(data), int64(len(data)), md5Of(data), digest, options)
	if err == nil {
		return s.own(ctx, key, digest, int64(len(data)))
	}
	err = judge("uploading "+key, err)
	if found, other := s.own(ctx, key, digest, int64(len(data))); other == nil {
		return found, nil
	} else if ReasonOf(other) == Exists {
		return Object{}, other
	}

	return Object{}, err
}

func md5Of(data []byte) string {
	sum := md5.Sum(data) //nolint:gosec // G401: as above.

	return base64.StdEncoding.EncodeToString(sum[:])
}

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)

	return hex.EncodeToString(sum[:])
}
