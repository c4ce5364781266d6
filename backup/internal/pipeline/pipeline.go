// Package pipeline turns the snapshot of an etcd into what a store keeps, and back. Both
// are streams: the memory that they take does not grow with the snapshot, and nothing is
// put on a disk.
package pipeline

import (
	"errors"
	"fmt"
	"io"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is the largest window of zstd that is read, which the format wants of readers.
const maxWindow = 8 << 20

// Sums are what is known of a snapshot and of what is stored of it.
type Sums struct {
	// PlainBytes and PlainSHA256 are of the snapshot as etcd gives it, with its trailer.
	PlainBytes  int64
	PlainSHA256 string
	// StoredBytes and StoredSHA256 are of what the store keeps.
	StoredBytes  int64
	StoredSHA256 string
}

// What may be wrong with the data. All other errors are those of the streams.
var (
	// ErrTrailer is a snapshot that does not end with the checksum of all before: it ended
	// early, or has changed on its way. The Talos API ends a snapshot without an error when
	// it can't read on.
	ErrTrailer = errors.New("the snapshot does not end with its own checksum")
	// ErrStored is data that is not what was stored.
	ErrStored = errors.New("the data is not what was stored")
	// ErrIdentity is data that is encrypted, but for none of the identities.
	ErrIdentity = errors.New("the data is encrypted for other recipients")
)

// Encode compresses a snapshot, and encrypts it for its recipients if there are any. It
// fails with ErrTrailer where the snapshot is not whole. What it has written when it fails
// is to be thrown away.
func Encode(snapshot io.Reader, stored io.Writer, recipients ...age.Recipient) (Sums, error) {
	from, into, plain := &source{Reader: snapshot}, newSink(stored), newTrailer()
	encrypted := io.WriteCloser(open{into})
	if len(recipients) > 0 {
		var err error
		if encrypted, err = age.Encrypt(into, recipients...); err != nil {
			return Sums{}, fmt.Errorf("beginning to encrypt: %w", err)
		}
	}
	err := compress(io.TeeReader(from, plain), encrypted)
	switch {
	case from.err != nil:
		return Sums{}, fmt.Errorf("reading the snapshot: %w", from.err)
	case err != nil:
		return Sums{}, fmt.Errorf("writing what is stored: %w", err)
	}
	plainSum, whole := plain.end()
	if !whole {
		return Sums{}, ErrTrailer
	}
	if err := encrypted.Close(); err != nil {
		return Sums{}, fmt.Errorf("writing what is stored: %w", err)
	}

	return Sums{PlainBytes: plain.bytes, PlainSHA256: plainSum, StoredBytes: into.bytes, StoredSHA256: into.sum()}, nil
}

// Decode is the reverse of Encode: it writes the snapshot of which the sums are known. It
// fails with ErrStored where the data is another, and with ErrIdentity where none of the
// identities can read it; no identity at all means that it is not encrypted. What it has
// written when it fails, never more than the snapshot has bytes, is to be thrown away.
func Decode(stored io.Reader, snapshot io.Writer, want Sums, identities ...age.Identity) error {
	// One byte more than there is tells that there is more: that need not have an end.
	from, into, read := &source{Reader: io.LimitReader(stored, want.StoredBytes+1)}, newSink(snapshot), newSink(io.Discard)
	err := decode(io.TeeReader(from, read), into, want.PlainBytes, identities)
	switch {
	case from.err != nil:
		return fmt.Errorf("reading what is stored: %w", from.err)
	case into.err != nil:
		return fmt.Errorf("writing the snapshot: %w", into.err)
	case errors.Is(err, ErrIdentity):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrStored, err)
	}
	found := Sums{PlainBytes: into.bytes, PlainSHA256: into.sum(), StoredBytes: read.bytes, StoredSHA256: read.sum()}
	if found != want {
		return fmt.Errorf("%w: found %+v, want %+v", ErrStored, found, want)
	}

	return nil
}

func decode(stored io.Reader, snapshot io.Writer, size int64, identities []age.Identity) error {
	decrypted := stored
	if len(identities) > 0 {
		var err error
		if decrypted, err = decrypt(stored, identities); err != nil {
			return err
		}
	}
	plain, err := zstd.NewReader(decrypted, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer plain.Close()
	if _, err := io.CopyN(snapshot, plain, size); err != nil {
		return err
	}
	// There is nothing after it, neither in the compressed data nor in what is stored.
	if more, err := io.Copy(io.Discard, io.LimitReader(plain, 1)); err != nil || more > 0 {
		return errors.Join(errors.New("there is more than the snapshot"), err)
	}
	_, err = io.Copy(io.Discard, stored)

	return err
}
