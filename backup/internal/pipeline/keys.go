package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"
)

// ParseRecipients reads public keys of age, as "age1…" (X25519) or "age1pq1…" (hybrid,
// post-quantum). Errors name the place of a key and never what was given for it, which may
// be a private key by mistake.
func ParseRecipients(keys []string) ([]age.Recipient, error) {
	parsed := make([]age.Recipient, 0, len(keys))
	for i, key := range keys {
		found, err := age.ParseRecipients(strings.NewReader(key))
		if strings.HasPrefix(strings.TrimSpace(key), "AGE-SECRET-KEY-") {
			return nil, fmt.Errorf("recipient %d is a private key: give the public one, which begins with age1, and take the private one for known to others", i)
		}
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("recipient %d is no public key of age, which begins with age1", i)
		}
		parsed = append(parsed, found...)
	}
	if len(parsed) == 0 {
		return nil, nil
	}
	// Hybrid keys can't be mixed with others, which would make them pointless.
	if _, err := age.Encrypt(io.Discard, parsed...); err != nil {
		return nil, errors.New("recipients are either all post-quantum (age1pq1…) or all not")
	}

	return parsed, nil
}

// ParseIdentities reads the private keys of a file of age: one a line, with comments.
// Errors do not repeat what they are about.
func ParseIdentities(file []byte) ([]age.Identity, error) {
	found, err := age.ParseIdentities(bytes.NewReader(file))
	if err != nil {
		return nil, errors.New("no file of private keys of age: a line for each, which begins with AGE-SECRET-KEY-")
	}

	return found, nil
}

// ErrNoRecipient is a secret that nobody could read again, or everybody.
var ErrNoRecipient = errors.New("secrets are stored for recipients only, and there is none")

// maxSealed is the most that Open reads: a secrets bundle has some ten kilobytes.
const maxSealed = 1 << 20

// Seal encrypts a small secret. It fails with ErrNoRecipient rather than store it in the
// clear.
func Seal(secret []byte, recipients ...age.Recipient) ([]byte, error) {
	if len(recipients) == 0 {
		return nil, ErrNoRecipient
	}
	sealed := &bytes.Buffer{}
	into, err := age.Encrypt(sealed, recipients...)
	if err != nil {
		return nil, fmt.Errorf("beginning to encrypt: %w", err)
	}
	if _, err := into.Write(secret); err != nil {
		return nil, fmt.Errorf("encrypting: %w", err)
	}
	if err := into.Close(); err != nil {
		return nil, fmt.Errorf("encrypting: %w", err)
	}

	return sealed.Bytes(), nil
}

// Open is the reverse of Seal, and fails as Decode does.
func Open(sealed []byte, identities ...age.Identity) ([]byte, error) {
	secret, err := decrypt(bytes.NewReader(sealed), identities)
	if errors.Is(err, ErrIdentity) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStored, err)
	}
	read, err := io.ReadAll(io.LimitReader(secret, maxSealed+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStored, err)
	}
	if len(read) > maxSealed {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrStored, maxSealed)
	}

	return read, nil
}

// maxHeader is how long the beginning of a file of age may be, which names its recipients and
// is read as a whole. The longest of ours, for 16 recipients that are post-quantum, has 30 KiB.
const maxHeader = 64 << 10

// errHeader does not repeat what was found: it may be as long as that.
var errHeader = fmt.Errorf("it does not begin as a file of age does, with a header of up to %d bytes", maxHeader)

// decrypt reads the header of a file of age, and returns a stream of what is encrypted. It
// fails with ErrIdentity where none of the identities can read it.
func decrypt(stored io.Reader, identities []age.Identity) (io.Reader, error) {
	from := &header{Reader: stored, left: maxHeader}
	plain, err := age.Decrypt(from, identities...)
	if _, isOther := errors.AsType[*age.NoIdentityMatchError](err); isOther {
		return nil, ErrIdentity
	} else if err != nil {
		return nil, errHeader
	}
	from.isRead = true

	return plain, nil
}

// header ends the stream that it is in if it is too long.
type header struct {
	io.Reader

	left   int
	isRead bool
}

// Read implements io.Reader.
func (h *header) Read(into []byte) (int, error) {
	if h.isRead {
		return h.Reader.Read(into)
	}
	if h.left == 0 {
		return 0, errHeader
	}
	read, err := h.Reader.Read(into[:min(len(into), h.left)])
	h.left -= read

	return read, err
}
