package objects

import (
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IsNotTaken reports whether a person may have to see to it that the API server takes what
// is written: it refuses that, as IsRefused says, or cannot decide on it, as when a webhook
// does not answer.
func IsNotTaken(err error) bool {
	return IsRefused(err) || apierrors.IsInternalError(err)
}

// IsLostRace reports whether a write has failed because somebody else was faster. Nothing has
// to be told of it: the next reconcile sees what is there then.
func IsLostRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// Says begins the words of the API server in the message of a condition. By it
// reconciliation.IgnoreWords knows a message that may be another one at each try.
const Says = "The API server says: "

// Explain says in a text, which is without a full stop, why a call has failed: in the words
// of the API server where it does not take what is written, else by a hint at the log. It
// is the same each time, as the message of a condition has to be, but for what others put into
// these words, as the ID of a request.
func Explain(text string, err error) string {
	if !IsNotTaken(err) {
		return text + ", see the log of the manager"
	}

	return text + ". " + Says + Words(err)
}

// words are those of the API server in a line of a message.
var words = regexp.MustCompile(" ?" + regexp.QuoteMeta(Says) + ".*")

// WithoutWords is what each line of a message says before the words of the API server. By it
// messages are compared that Explain may put into other words each time.
func WithoutWords(message string) string { return words.ReplaceAllLiteralString(message, "") }

var (
	// sourceAddress is where a connection comes from, with a port that is of that one alone.
	sourceAddress = regexp.MustCompile(`[^\s"]+:\d+->`)
	// presentTime is what a certificate was compared with.
	presentTime = regexp.MustCompile(`current time \S+ is `)
)

// Words are those of an error of the API server in one line, without what differs each time
// when a webhook is asked that does not answer.
func Words(err error) string {
	line := strings.Join(strings.Fields(err.Error()), " ")

	return presentTime.ReplaceAllString(sourceAddress.ReplaceAllString(line, ""), "the current time is ")
}
