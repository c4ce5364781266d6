package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

const (
	// frameBytes is how much of a snapshot is compressed by itself, and how far zstd looks back:
	// four times as much saves 5 % of what is stored, and takes 6 MiB of memory.
	frameBytes = 256 << 10
	// framesAtOnce is how many are compressed at the same time; one more is read or written
	// meanwhile. More than there are processors keep these busy.
	framesAtOnce = 3
)

// frame is a part of a snapshot that is compressed by itself.
type frame struct {
	plain, stored []byte
	// done is closed when stored is what plain has become.
	done chan struct{}
}

// compress writes a stream as frames of zstd: together, these are what zstd reads as one
// stream. It returns when neither stream is used any more.
func compress(plain io.Reader, stored io.Writer) error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(framesAtOnce), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(frameBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return fmt.Errorf("beginning to compress: %w", err)
	}
	group, ctx := errgroup.WithContext(context.Background())
	free, inOrder := make(chan *frame, framesAtOnce+1), make(chan *frame, framesAtOnce+1)
	for range cap(free) {
		free <- &frame{plain: make([]byte, frameBytes), stored: make([]byte, 0, encoder.MaxEncodedSize(frameBytes))}
	}
	group.Go(func() error {
		defer close(inOrder)
		for {
			var next *frame
			select {
			case next = <-free:
			case <-ctx.Done():
				return nil // The other one tells why.
			}
			read, err := io.ReadFull(plain, next.plain[:frameBytes])
			isLast := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			if err != nil && !isLast {
				return err //nolint:wrapcheck // It is for Encode to tell whose it is.
			}
			next.plain, next.done = next.plain[:read], make(chan struct{})
			group.Go(func() error {
				defer close(next.done)
				next.stored = encoder.EncodeAll(next.plain, next.stored[:0])
				return nil
			})
			inOrder <- next
			if isLast {
				return nil
			}
		}
	})
	group.Go(func() error {
		for next := range inOrder {
			<-next.done
			if _, err := stored.Write(next.stored); err != nil {
				return err //nolint:wrapcheck // It is for Encode to tell whose it is.
			}
			free <- next
		}
		return nil
	})

	return group.Wait() //nolint:wrapcheck // It is for Encode to tell whose it is.
}
