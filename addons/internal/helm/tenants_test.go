package helm_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// TestSchemasAreReadFromTheChartAlone: Helm gets what they refer to from any server and any
// file, with the rights of the manager.
func TestSchemasAreReadFromTheChartAlone(t *testing.T) {
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = fmt.Fprint(w, `{"type":"object"}`)
	}))
	t.Cleanup(elsewhere.Close)
	file := filepath.Join(t.TempDir(), "token")
	NewWithT(t).Expect(os.WriteFile(file, []byte(`{"type":"object"}`), 0o600)).To(Succeed())
	inSubchart := charts.Chart{
		"charts/base/Chart.yaml":         "apiVersion: v2\nname: base\nversion: 1.0.0\n",
		"charts/base/values.schema.json": `{"properties":{"a":{"$ref":"` + elsewhere.URL + `/x"}}}`,
	}
	for name, chart := range map[string]charts.Chart{
		"a server":                 {"values.schema.json": `{"properties":{"a":{"$ref":"` + elsewhere.URL + `/x"}}}`},
		"a server, by its own URL": {"values.schema.json": `{"$id":"` + elsewhere.URL + `/own","properties":{"a":{"$ref":"x"}}}`},
		"a dialect":                {"values.schema.json": `{"$schema":"` + elsewhere.URL + `/dialect"}`},
		"a file":                   {"values.schema.json": `{"$ref":"file://` + file + `"}`},
		"in a chart in the chart":  inSubchart,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := helm.Inspect(chart.Pack("1.0.0"))
			g.Expect(err).To(And(HaveField("Reason", addonv1.ChartInvalidReason), MatchError(ContainSubstring("which is not in it"))))
		})
	}
	b := newBed(t)
	request := b.request(inSubchart.Pack("1.0.0"), map[string]any{"base": map[string]any{"a": map[string]any{}}})
	_, err := b.helm.Install(t.Context(), request)
	b.Expect(err).To(MatchError(ContainSubstring("which is not in it")), "nor when it is installed")
	b.Expect(asked.Load()).To(BeZero())
	_, err = helm.Inspect(charts.Chart{"values.schema.json": `{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/own", "$defs": {"a": {"$id": "urn:a", "type": "string"}},
		"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "own#/$defs/a"}, "c": {"$ref": "urn:a"}, "d": {"$ref": "urn:other"}}
	}`}.Pack("1.0.0"))
	b.Expect(err).NotTo(HaveOccurred(), "what is complete in itself is used")
}

// packed packs files and links as they are given.
func packed(headers ...tar.Header) []byte {
	made := &bytes.Buffer{}
	compressed := gzip.NewWriter(made)
	archive := tar.NewWriter(compressed)
	files := append([]tar.Header{{Name: "demo/Chart.yaml", PAXRecords: map[string]string{"CAPT.text": "apiVersion: v2\nname: demo\nversion: 1.0.0\n"}}}, headers...)
	for _, header := range files {
		text := header.PAXRecords["CAPT.text"]
		header.PAXRecords, header.Mode, header.Size = nil, 0o644, int64(len(text))
		// Writing to memory does not fail.
		_ = archive.WriteHeader(&header)
		_, _ = archive.Write([]byte(text))
	}
	_ = archive.Close()
	_ = compressed.Close()

	return made.Bytes()
}

func withText(text string) map[string]string { return map[string]string{"CAPT.text": text} }

// TestAChartHasNoFilesButItsOwn: neither by links nor by paths out of it.
func TestAChartHasNoFilesButItsOwn(t *testing.T) {
	for _, name := range []string{"demo/../../etc/passwd", "demo//etc/passwd", "demo/templates/../../../a", `demo\..\..\a`} {
		t.Run(name, func(t *testing.T) {
			_, err := helm.Inspect(packed(tar.Header{Name: name, PAXRecords: withText("x")}))
			NewWithT(t).Expect(err).To(HaveField("Reason", addonv1.ChartInvalidReason))
		})
	}
	b := newBed(t)
	_, err := b.helm.Install(t.Context(), b.request(packed(
		tar.Header{Name: "demo/passwd", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "demo/hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		tar.Header{Name: "demo/templates/a.yaml", PAXRecords: withText(`apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data:
  link: {{ .Files.Get "passwd" | quote }}
  hard: {{ .Files.Get "hard" | quote }}
  absolute: {{ .Files.Get "/etc/passwd" | quote }}
  relative: {{ .Files.Get "../../../../etc/passwd" | quote }}
  host: {{ getHostByName "localhost" | quote }}
`)},
	), nil))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.data()).To(Equal(map[string]string{"link": "", "hard": "", "absolute": "", "relative": "", "host": ""}))
	for _, template := range []string{`{{ env "HOME" }}`, `{{ expandenv "$HOME" }}`} {
		_, err := b.helm.Upgrade(t.Context(), b.request(charts.Chart{"templates/a.yaml": template}.Pack("2.0.0"), nil))
		b.Expect(err).To(MatchError(ContainSubstring("not defined")))
	}
}

// TestAChartBombIsRefused, also where it is made of charts in the chart, which Helm unpacks
// one by one.
func TestAChartBombIsRefused(t *testing.T) {
	zeros := strings.Repeat("0", 4<<20)
	part := charts.Chart{"a": zeros, "b": zeros, "c": zeros, "d": zeros}.Pack("1.0.0")
	for name, chart := range map[string]charts.Chart{
		"a large file":        {"files/bomb": strings.Repeat("0", 6<<20)},
		"many files":          {"a": zeros, "b": zeros, "c": zeros, "d": zeros, "e": zeros, "f": zeros, "g": zeros, "h": zeros},
		"charts in the chart": {"charts/a.tgz": string(part), "charts/b.tgz": string(part)},
		"one in one in one":   {"charts/a.tgz": string(charts.Chart{"charts/b.tgz": string(part), "a": zeros, "b": zeros, "c": zeros, "d": zeros}.Pack("1.0.0"))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm.Inspect(chart.Pack("1.0.0"))
			NewWithT(t).Expect(err).To(And(HaveField("Reason", addonv1.ChartInvalidReason), MatchError(ContainSubstring("larger than"))))
		})
	}
	_, err := helm.Inspect(charts.Chart{"charts/a.tgz": string(part)}.Pack("1.0.0"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// TestAStoredReleaseThatIsABombIsNotUnpacked: whoever may write Secrets in a namespace of
// the workload cluster may write those of Helm.
func TestAStoredReleaseThatIsABombIsNotUnpacked(t *testing.T) {
	b := newBed(t)
	_, err := b.helm.Install(t.Context(), b.request(demo.Pack("1.0.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	packed := &bytes.Buffer{}
	compressed := gzip.NewWriter(packed)
	for range 200 {
		_, _ = compressed.Write(make([]byte, 1<<20))
	}
	_ = compressed.Close()
	bomb := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.target.Namespace, Name: "sh.helm.release.v1.demo.v2", Labels: map[string]string{"owner": "helm", "name": "demo", "status": "deployed", "version": "2"}},
		Type:       "helm.sh/release.v1", Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))},
	}
	b.Expect(b.live.Create(t.Context(), bomb)).To(Succeed())
	_, err = b.helm.History(t.Context(), b.target)
	refused := (*release.RefusedError)(nil)
	b.Expect(errors.As(err, &refused)).To(BeTrue(), fmt.Sprint(err))
	b.Expect(refused.Reason).To(Equal(addonv1.ReleaseConflictReason))
	b.Expect(refused.Message).To(ContainSubstring(bomb.Name))
	_, err = b.helm.Get(t.Context(), b.target)
	b.Expect(errors.As(err, &refused)).To(BeTrue(), fmt.Sprint(err))
	b.Expect(b.live.Delete(t.Context(), bomb)).To(Succeed())
	b.Expect(b.history()).To(HaveLen(1))
}

// TestAnAPIServerCannotSendTheManagerOn: anybody may have set it up.
func TestAnAPIServerCannotSendTheManagerOn(t *testing.T) {
	g := NewWithT(t)
	var asked atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(elsewhere.Close)
	hostile := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(hostile.Close)
	_, err := helm.New(&rest.Config{Host: hostile.URL}, nil).History(t.Context(), release.Target{Namespace: "a", Name: "demo"})
	g.Expect(err).To(MatchError(ContainSubstring("sends the request elsewhere")))
	g.Expect(asked.Load()).To(BeZero())
}

// TestAnAPIServerCannotAnswerWithoutEnd.
func TestAnAPIServerCannotAnswerWithoutEnd(t *testing.T) {
	g := NewWithT(t)
	content, err := io.ReadAll(helm.Bounded(strings.NewReader("0123456789"), 10))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(Equal("0123456789"))
	content, err = io.ReadAll(helm.Bounded(iotest.OneByteReader(strings.NewReader("0123456789x")), 10))
	g.Expect(err).To(MatchError(ContainSubstring("its answer is longer")))
	g.Expect(string(content)).To(Equal("0123456789"))
}
