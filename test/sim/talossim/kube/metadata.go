package kube

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// wantsMetadata reports whether the client wants no more than the metadata of
// objects.
func wantsMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// metadataWriter reduces the events of a watch to the metadata of their
// objects. Lists and single objects need not be reduced: clients do that.
type metadataWriter struct {
	http.ResponseWriter
	// rest is the beginning of an event whose end was not written yet.
	rest bytes.Buffer
}

// Write implements http.ResponseWriter.
func (m *metadataWriter) Write(part []byte) (int, error) {
	m.rest.Write(part)
	decoder := json.NewDecoder(bytes.NewReader(m.rest.Bytes()))
	var done int64
	for {
		event := struct {
			Type   watch.EventType              `json:"type"`
			Object metav1.PartialObjectMetadata `json:"object"`
		}{}
		if err := decoder.Decode(&event); err != nil {
			break // The rest is not complete.
		}
		done = decoder.InputOffset()
		event.Object.TypeMeta = metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "PartialObjectMetadata"}
		if err := json.NewEncoder(m.ResponseWriter).Encode(event); err != nil {
			return 0, err
		}
	}
	m.rest.Next(int(done))
	return len(part), nil
}

// Flush implements http.Flusher.
func (m *metadataWriter) Flush() {
	if flusher, ok := m.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}
