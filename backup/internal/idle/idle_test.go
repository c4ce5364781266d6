package idle

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

var errLate = errors.New("too late")

func TestAWatchEndsWhatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ended := NewWithT(t), make(chan time.Time, 1)
		begun := time.Now()
		watch := Begin(time.Minute, func() { ended <- time.Now() })
		for range 3 {
			<-time.After(59 * time.Second)
			watch.Moved()
		}
		g.Expect((<-ended).Sub(begun)).To(Equal(3*59*time.Second + time.Minute))
		g.Expect(watch.End()).To(BeTrue())
		watch.Moved()
		<-time.After(time.Hour)
		g.Expect(ended).To(BeEmpty(), "it ends once")
	})
}

func TestAWatchThatHasEndedEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		watch := Begin(time.Minute, func() { t.Error("ended") })
		g.Expect(watch.End()).To(BeFalse())
		watch.Moved()
		<-time.After(time.Hour)
		g.Expect(watch.End()).To(BeFalse())
	})
}

// TestAReaderOfASilentStreamEnds: after any bytes, and not for those who read slowly.
func TestAReaderOfASilentStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		out, in := io.Pipe()
		closed := errors.New("closed")
		go func() { _, _ = io.WriteString(in, "the beginning") }()
		reader := Reader(out, time.Minute, func() { _ = in.CloseWithError(closed) }, errLate)
		one := make([]byte, 1)
		for range len("the beginning") {
			g.Expect(reader.Read(one)).To(Equal(1))
			<-time.After(time.Hour)
		}
		_, err := reader.Read(one)
		g.Expect(err).To(MatchError(errLate))
		_, err = reader.Read(one)
		g.Expect(err).To(MatchError(errLate), "and it stays so")
	})
}

func TestErrorsOfAStreamAreItsOwn(t *testing.T) {
	g, broken := NewWithT(t), errors.New("broken")
	_, err := io.ReadAll(Reader(iotest.ErrReader(broken), time.Hour, t.FailNow, errLate))
	g.Expect(err).To(MatchError(broken))
	g.Expect(io.ReadAll(Reader(strings.NewReader("all"), time.Hour, t.FailNow, errLate))).To(BeEquivalentTo("all"))
}
