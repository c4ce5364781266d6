package pipeline

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
)

// source remembers the error with which it ended, so that it is known from those of what
// is made of its data.
type source struct {
	io.Reader

	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && err != io.EOF { // Readers end with this very error; what wraps it is none.
		s.err = err
	}

	return n, err
}

// sink counts and sums what is written, and remembers its error.
type sink struct {
	into  io.Writer
	hash  hash.Hash
	bytes int64
	err   error
}

func newSink(into io.Writer) *sink {
	return &sink{into: into, hash: sha256.New()}
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.into.Write(p)
	s.hash.Write(p[:n])
	s.bytes += int64(n)
	if err != nil {
		s.err = err
	}

	return n, err
}

func (s *sink) sum() string { return hex.EncodeToString(s.hash.Sum(nil)) }

// SHA256 is the digest of some bytes, in hex.
func SHA256(data []byte) string {
	sum := sha256.Sum256(data)

	return hex.EncodeToString(sum[:])
}

// Sum reads a stream to its end, and returns its SHA-256 digest in hex, and its length.
func Sum(stream io.Reader) (string, int64, error) {
	read := newSink(io.Discard)
	_, err := io.Copy(read, stream)

	return read.sum(), read.bytes, err
}

// open is a writer that somebody else closes.
type open struct{ io.Writer }

func (open) Close() error { return nil }

// trailer counts and sums a stream, and holds back its last bytes meanwhile, which are to be
// the sum of all before.
type trailer struct {
	hash   hash.Hash
	last   []byte
	bytes  int64
	summed bool
}

func newTrailer() *trailer {
	return &trailer{hash: sha256.New(), last: make([]byte, 0, 2*sha256.Size)}
}

func (t *trailer) Write(p []byte) (int, error) {
	written := len(p)
	t.bytes += int64(written)
	if over := len(t.last) + len(p) - sha256.Size; over > 0 {
		held := min(over, len(t.last))
		t.hash.Write(t.last[:held])
		t.last = append(t.last[:0], t.last[held:]...)
		t.hash.Write(p[:over-held])
		p = p[over-held:]
		t.summed = true
	}
	t.last = append(t.last, p...)

	return written, nil
}

// end is the sum of the whole stream, and whether it ended with the sum of all before, and
// that was something. Nothing can be written after it.
func (t *trailer) end() (sum string, holds bool) {
	holds = t.summed && bytes.Equal(t.hash.Sum(nil), t.last)
	t.hash.Write(t.last)

	return hex.EncodeToString(t.hash.Sum(nil)), holds
}
