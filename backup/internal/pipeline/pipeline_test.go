package pipeline

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"filippo.io/age"
	. "github.com/onsi/gomega"
)

// snapshot is one of etcd as far as a stream can tell: some data, and its checksum.
func snapshot(size int, seed uint64) []byte {
	data := make([]byte, size)
	random := rand.New(rand.NewPCG(seed, seed))
	for i := range data {
		data[i] = "0123456789abcdef"[random.IntN(16)]
	}
	sum := sha256.Sum256(data)

	return append(data, sum[:]...)
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return key
}

func encode(t *testing.T, plain []byte, recipients ...age.Recipient) ([]byte, Sums) {
	t.Helper()
	stored := &bytes.Buffer{}
	known, err := Encode(bytes.NewReader(plain), stored, recipients...)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return stored.Bytes(), known
}

func TestASnapshotComesBack(t *testing.T) {
	one, two := identity(t), identity(t)
	for name, test := range map[string]struct {
		size       int
		recipients []age.Recipient
		identities []age.Identity
	}{
		"in the clear":            {100_000, nil, nil},
		"for one":                 {100_000, []age.Recipient{one.Recipient()}, []age.Identity{one}},
		"for two, by the second":  {100_000, []age.Recipient{one.Recipient(), two.Recipient()}, []age.Identity{two}},
		"with one key of several": {100_000, []age.Recipient{one.Recipient()}, []age.Identity{two, one}},
		"of a byte":               {1, []age.Recipient{one.Recipient()}, []age.Identity{one}},
		"as long as a frame":      {frameBytes, []age.Recipient{one.Recipient()}, []age.Identity{one}},
		"of many frames":          {5_000_000, []age.Recipient{one.Recipient()}, []age.Identity{one}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			plain := snapshot(test.size, 1)
			stored, known := encode(t, plain, test.recipients...)
			g.Expect(known.PlainBytes).To(BeEquivalentTo(len(plain)))
			g.Expect(known.StoredBytes).To(BeEquivalentTo(len(stored)))
			back := &bytes.Buffer{}
			g.Expect(Decode(bytes.NewReader(stored), back, known, test.identities...)).To(Succeed())
			g.Expect(bytes.Equal(back.Bytes(), plain)).To(BeTrue())
			if len(test.recipients) > 0 {
				g.Expect(Decode(bytes.NewReader(stored), io.Discard, known, identity(t))).To(MatchError(ErrIdentity))
			}
		})
	}
}

// TestASnapshotThatIsNotWhole: wherever a stream ends without an error, and whichever
// byte of it is another, it is refused.
func TestASnapshotThatIsNotWhole(t *testing.T) {
	g := NewWithT(t)
	plain := snapshot(2000, 2)
	for length := range len(plain) {
		_, err := Encode(bytes.NewReader(plain[:length]), io.Discard)
		g.Expect(err).To(MatchError(ErrTrailer), "%d bytes", length)
		flipped := slices.Clone(plain)
		flipped[length] ^= 1
		// Readers give what they have in pieces of their own.
		_, err = Encode(iotest.OneByteReader(bytes.NewReader(flipped)), io.Discard)
		g.Expect(err).To(MatchError(ErrTrailer), "byte %d", length)
	}
	nothing := sha256.Sum256(nil)
	_, err := Encode(bytes.NewReader(nothing[:]), io.Discard)
	g.Expect(err).To(MatchError(ErrTrailer), "the checksum of nothing")
}

// TestDataThatIsNotWhatWasStored: wherever it ends, whichever byte is another, and with
// anything after it.
func TestDataThatIsNotWhatWasStored(t *testing.T) {
	key := identity(t)
	for name, test := range map[string]struct {
		recipients []age.Recipient
		identities []age.Identity
	}{
		"in the clear": {},
		"encrypted":    {[]age.Recipient{key.Recipient()}, []age.Identity{key}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stored, known := encode(t, snapshot(2000, 3), test.recipients...)
			decoded := func(data []byte) error {
				return Decode(bytes.NewReader(data), io.Discard, known, test.identities...)
			}
			for place := range stored {
				g.Expect(decoded(stored[:place])).To(MatchError(ErrStored), "%d bytes", place)
				flipped := slices.Clone(stored)
				flipped[place] ^= 1
				// A flipped byte of the key makes it one for somebody else.
				g.Expect(decoded(flipped)).To(Or(MatchError(ErrStored), MatchError(ErrIdentity)), "byte %d", place)
			}
			g.Expect(decoded(append(slices.Clone(stored), 0))).To(MatchError(ErrStored))
			other, _ := encode(t, snapshot(2000, 4), test.recipients...)
			g.Expect(decoded(other)).To(MatchError(ErrStored))
		})
	}
}

// TestABombIsNotUnpacked: data that grows beyond the snapshot is given up.
func TestABombIsNotUnpacked(t *testing.T) {
	g := NewWithT(t)
	bomb := make([]byte, 50_000_000)
	sum := sha256.Sum256(bomb)
	stored, known := encode(t, append(bomb, sum[:]...))
	known.PlainBytes = 1000
	written := newSink(io.Discard)
	g.Expect(Decode(bytes.NewReader(stored), written, known)).To(MatchError(ErrStored))
	g.Expect(written.bytes).To(BeNumerically("<=", 1000))
}

// TestHeadersWithoutAnEndAreNotReadToIt: of one line, and of many.
func TestHeadersWithoutAnEndAreNotReadToIt(t *testing.T) {
	key := identity(t)
	for name, line := range map[string]string{"a line": "a", "many recipients": "-> X25519 a\naaaa\n"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			long := strings.NewReader("age-encryption.org/v1\n-> X25519 a\naaaa\n-> " + strings.Repeat(line, 8<<20/len(line)))
			all := long.Len()
			err := Decode(long, io.Discard, Sums{PlainBytes: 1 << 30, StoredBytes: 1 << 30}, key)
			g.Expect(err).To(MatchError(ErrStored))
			g.Expect(len(err.Error())).To(BeNumerically("<", 500))
			g.Expect(all - long.Len()).To(BeNumerically("<=", maxHeader))
		})
	}
	t.Run("but as many recipients as a store has", func(t *testing.T) {
		g := NewWithT(t)
		var recipients []age.Recipient
		for range 16 {
			hybrid, err := age.GenerateHybridIdentity()
			g.Expect(err).NotTo(HaveOccurred())
			recipients = append(recipients, hybrid.Recipient())
			if len(recipients) == 16 {
				stored, known := encode(t, snapshot(1000, 6), recipients...)
				g.Expect(Decode(bytes.NewReader(stored), io.Discard, known, hybrid)).To(Succeed())
			}
		}
	})
}

// TestNoMoreIsReadThanWasStored: what follows need not have an end, as with frames of nothing.
func TestNoMoreIsReadThanWasStored(t *testing.T) {
	g := NewWithT(t)
	stored, known := encode(t, snapshot(1000, 7))
	more := bytes.NewReader(bytes.Repeat([]byte{0x28, 0xB5, 0x2F, 0xFD, 0x20, 0, 1, 0, 0}, 1<<20/9+1))
	g.Expect(Decode(io.MultiReader(bytes.NewReader(stored), more), io.Discard, known)).To(MatchError(ErrStored))
	g.Expect(more.Len()).To(BeNumerically(">", 1<<20-known.StoredBytes))
}

func TestErrorsOfStreamsAreTheirOwn(t *testing.T) {
	plain := snapshot(3_000_000, 5)
	stored, known := encode(t, plain)
	// What is wrapped is no end, and an end that was not expected is none.
	for _, broken := range []error{errors.New("connection reset"), io.ErrUnexpectedEOF, fmt.Errorf("stream: %w", io.EOF)} {
		t.Run(broken.Error(), func(t *testing.T) {
			g := NewWithT(t)
			_, err := Encode(io.MultiReader(bytes.NewReader(plain[:1000]), iotest.ErrReader(broken)), io.Discard)
			g.Expect(err).To(MatchError(broken))
			g.Expect(err).To(MatchError(ContainSubstring("reading the snapshot")))
			_, err = Encode(bytes.NewReader(plain), failing{broken})
			g.Expect(err).To(MatchError(broken))
			g.Expect(err).To(MatchError(ContainSubstring("writing what is stored")))
			err = Decode(io.MultiReader(bytes.NewReader(stored[:1000]), iotest.ErrReader(broken)), io.Discard, known)
			g.Expect(err).To(MatchError(broken))
			g.Expect(err).To(MatchError(ContainSubstring("reading what is stored")))
			g.Expect(err).ToNot(MatchError(ErrStored))
			err = Decode(bytes.NewReader(stored), failing{broken}, known)
			g.Expect(err).To(MatchError(broken))
			g.Expect(err).To(MatchError(ContainSubstring("writing the snapshot")))
			g.Expect(err).ToNot(MatchError(ErrStored))
		})
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestMemoryDoesNotGrowWithTheSnapshot: what is allocated for a large snapshot is about
// what is for a small one.
func TestMemoryDoesNotGrowWithTheSnapshot(t *testing.T) {
	g := NewWithT(t)
	recipient := identity(t).Recipient()
	allocated := func(size int64) uint64 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := Encode(io.LimitReader(endless{}, size), io.Discard, recipient)
		runtime.ReadMemStats(&after)
		g.Expect(err).To(MatchError(ErrTrailer))

		return after.TotalAlloc - before.TotalAlloc
	}
	allocated(1 << 20)
	small := allocated(1 << 20)
	g.Expect(allocated(256 << 20)).To(BeNumerically("<", small+(8<<20)))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = "0123456789abcdef"[i*i%16]
	}

	return len(p), nil
}

func TestRecipients(t *testing.T) {
	g := NewWithT(t)
	key := identity(t)
	hybrid, err := age.GenerateHybridIdentity()
	g.Expect(err).ToNot(HaveOccurred())
	for name, test := range map[string]struct {
		keys []string
		want string
	}{
		"none":             {nil, ""},
		"one":              {[]string{key.Recipient().String()}, ""},
		"post-quantum":     {[]string{hybrid.Recipient().String()}, ""},
		"a private key":    {[]string{key.Recipient().String(), key.String()}, "recipient 1 is a private key"},
		"a private hybrid": {[]string{" " + hybrid.String()}, "recipient 0 is a private key"},
		"no key":           {[]string{"age1nothing"}, "recipient 0 is no public key"},
		"two in one":       {[]string{key.Recipient().String() + "\n" + key.Recipient().String()}, "recipient 0 is no public key"},
		"a comment":        {[]string{"# somebody"}, "recipient 0 is no public key"},
		"one of each":      {[]string{key.Recipient().String(), hybrid.Recipient().String()}, "all post-quantum"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := ParseRecipients(test.keys)
			if test.want == "" {
				g.Expect(err).ToNot(HaveOccurred())
				g.Expect(found).To(HaveLen(len(test.keys)))
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			g.Expect(err.Error()).ToNot(ContainSubstring("SECRET"))
		})
	}
}

func TestIdentities(t *testing.T) {
	g := NewWithT(t)
	key := identity(t)
	found, err := ParseIdentities([]byte("# created\n" + key.String() + "\n"))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	for _, wrong := range []string{"", "hunter2", key.String() + "x"} {
		_, err = ParseIdentities([]byte(wrong))
		g.Expect(err).To(MatchError(ContainSubstring("no file of private keys")))
		g.Expect(err.Error()).ToNot(Or(ContainSubstring("hunter2"), ContainSubstring(key.String())))
	}
}

func TestSecretsAreSealed(t *testing.T) {
	g := NewWithT(t)
	key := identity(t)
	_, err := Seal([]byte("secret"))
	g.Expect(err).To(MatchError(ErrNoRecipient))
	sealed, err := Seal([]byte("secret"), key.Recipient())
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(string(sealed)).ToNot(ContainSubstring("secret"))
	opened, err := Open(sealed, key)
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(string(opened)).To(Equal("secret"))
	_, err = Open(sealed, identity(t))
	g.Expect(err).To(MatchError(ErrIdentity))
	for length := range sealed {
		_, err = Open(sealed[:length], key)
		g.Expect(err).To(MatchError(ErrStored))
	}
	large, err := Seal(make([]byte, maxSealed+1), key.Recipient())
	g.Expect(err).ToNot(HaveOccurred())
	_, err = Open(large, key)
	g.Expect(err).To(MatchError(ErrStored))
}
