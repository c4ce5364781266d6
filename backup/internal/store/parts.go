package store

import (
	"cmp"
	"io"
	"slices"
	"sync"

	"github.com/minio/minio-go/v7"
)

const (
	// partSize is how much is sent with a request, the least that S3 takes of all but the last
	// one; partsInMemory is how many of these an upload has: one is filled while the other is
	// sent. Larger ones are no faster, and take memory.
	partSize      = 5 << 20
	partsInMemory = 2
	// maxParts is how many parts an upload may have.
	maxParts = 10_000
)

// part is a part of an upload. Each takes as much memory as the largest.
type part struct {
	data [partSize]byte
	size int
}

// spareParts are parts of former uploads, to whatever store: as many as one upload has. A
// sync.Pool would not keep them from one small upload to the next.
var spareParts = make(chan *part, partsInMemory)

// newPart returns a part for whoever releases it.
func newPart() *part {
	select {
	case spare := <-spareParts:
		spare.size = 0
		return spare
	default:
		return &part{}
	}
}

// release keeps the part for another upload. Nobody may read it any more: see sending.
func (p *part) release() {
	select {
	case spareParts <- p:
	default:
	}
}

// fill fills the part, and reports whether there may be more.
func (p *part) fill(stream io.Reader) (more bool, err error) {
	for p.size < len(p.data) {
		read, err := stream.Read(p.data[p.size:])
		p.size += read
		// Nothing but this very error is an end: io.ReadFull, for one, takes a connection
		// that broke for one.
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return true, err
		}
	}

	return true, nil
}

// sentParts are the parts that have arrived.
type sentParts struct {
	mu    sync.Mutex
	parts []minio.CompletePart
}

func (p *sentParts) add(part minio.CompletePart) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts = append(p.parts, part)
}

func (p *sentParts) inOrder() []minio.CompletePart {
	slices.SortFunc(p.parts, func(a, b minio.CompletePart) int { return cmp.Compare(a.PartNumber, b.PartNumber) })

	return p.parts
}
