package values

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestValuesDoNotShowInMessages(t *testing.T) {
	g, hide := NewWithT(t), &Hidden{}
	hide.Hide(Part{Text: []byte("db: {password: hunter2, user: db, port: 54321, on: true}\nkeys: [\"line one\\nline two\", hunter2-long]\n")}, true)
	hide.Hide(Part{Text: []byte("image: registry.example.com/app\ntag: v1.2\n")}, false)
	hide.Hide(Part{Text: []byte("- none")}, true)
	for text, want := range map[string]string{
		`Invalid value: "hunter2": no`:                `Invalid value: "***": no`,
		`hunter2-long`:                                `***`,
		`port 54321 of db`:                            `port *** of db`,
		"line one\nline two":                          `***`,
		`Invalid value: "line one\nline two"`:         `Invalid value: "***"`,
		`data: aHVudGVyMg==`:                          `data: ***`,
		`pulling registry.example.com/app:v1.2: true`: `pulling ***:v1.2: true`,
	} {
		g.Expect(hide.In(text)).To(Equal(want))
	}
}
