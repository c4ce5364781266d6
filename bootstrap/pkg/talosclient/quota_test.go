package talosclient

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestEtcdQuota(t *testing.T) {
	t.Parallel()
	for sentence, tt := range map[string]struct {
		spec string
		want int64
		bad  bool
	}{
		"nothing is said":                {spec: "name: one\nextraArgs: {}", want: DefaultEtcdQuota},
		"something else is said":         {spec: "extraArgs: {max-txn-ops: {values: [\"9\"]}}", want: DefaultEtcdQuota},
		"Talos v1.12":                    {spec: "extraArgs: {quota-backend-bytes: \"8589934592\"}", want: 8 << 30},
		"Talos v1.13 and later":          {spec: "extraArgs:\n  quota-backend-bytes:\n    values:\n      - \"8589934592\"", want: 8 << 30},
		"the last of two counts":         {spec: "extraArgs: {quota-backend-bytes: {values: [\"1\", \"2\"]}}", want: 2},
		"0 is the default":               {spec: "extraArgs: {quota-backend-bytes: {values: [\"0\"]}}", want: DefaultEtcdQuota},
		"a negative one switches it off": {spec: "extraArgs: {quota-backend-bytes: {values: [\"-1\"]}}"},
		"it is no number":                {spec: "extraArgs: {quota-backend-bytes: {values: [much]}}", bad: true},
		"it has another form":            {spec: "extraArgs: {quota-backend-bytes: [\"1\"]}", bad: true},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got, err := etcdQuota([]byte(tt.spec))
			g.Expect(err != nil).To(Equal(tt.bad))
			g.Expect(got).To(Equal(tt.want))
		})
	}
}
