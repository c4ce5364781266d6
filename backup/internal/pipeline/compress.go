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
	// eight times as much saves 5 % of what is stored, and takes five times the memory.
	frameBytes = 128 << 10
	// framesAtOnce is how many are compressed at the same time: more than there are processors
	// keep these busy. Three times as many are read, or wait to be written in order, meanwhile,
	// so that nothing stands still while an upload is begun.
	framesAtOnce = 3
	frames       = 4 * framesAtOnce
)

// frame is a part of a snapshot that is compressed by itself.
type frame struct {
	plain, stored []byte
	// done is closed when stored is what plain has become.
	done chan struct{}
}

// compressor is what compressing a stream takes: some 6 MiB.
type compressor struct {
	encoder *zstd.Encoder
	frames  [frames]frame
}

// spareCompressor is that of a former stream, if there is one. A sync.Pool would not keep it
// from one small stream to the next, and these make more garbage than they have data without.
var spareCompressor = make(chan *compressor, 1)

// newCompressor returns a compressor for whoever releases it.
func newCompressor() (*compressor, error) {
	select {
	case spare := <-spareCompressor:
		return spare, nil
	default:
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(framesAtOnce), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(frameBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("beginning to compress: %w", err)
	}
	c := &compressor{encoder: encoder}
	for i := range c.frames {
		c.frames[i] = frame{plain: make([]byte, frameBytes), stored: make([]byte, 0, encoder.MaxEncodedSize(frameBytes))}
	}

	return c, nil
}

// release keeps the compressor for another stream.
func (c *compressor) release() {
	select {
	case spareCompressor <- c:
	default:
	}
}

// compress writes a stream as frames of zstd: together, these are what zstd reads as one
// stream. It returns when neither stream is used any more.
func compress(plain io.Reader, stored io.Writer) error {
	with, err := newCompressor()
	if err != nil {
		return err
	}
	defer with.release()
	group, ctx := errgroup.WithContext(context.Background())
	free, inOrder := make(chan *frame, frames), make(chan *frame, frames)
	for i := range with.frames {
		free <- &with.frames[i]
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
				next.stored = with.encoder.EncodeAll(next.plain, next.stored[:0])
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
