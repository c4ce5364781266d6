package secrets

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// EncryptionDigest tells two keys for the encryption of Secrets in etcd apart
// without revealing them. It is keyed with the service account key, so it tells
// nothing to who has not got the bundle, and means nothing beside another
// bundle. Digest leaves these keys out, because it has to stay comparable with
// what was recorded before.
func (b *Bundle) EncryptionDigest() string {
	sum := hmac.New(sha256.New, b.parsed.Certs.K8sServiceAccount.Key)
	for _, part := range []string{b.parsed.Secrets.SecretboxEncryptionSecret, b.parsed.Secrets.AESCBCEncryptionSecret} {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil))
}
