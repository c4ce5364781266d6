package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestTheWriterPrintsWhatWasAcknowledgedAndNothingElse(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	tries := 0
	client.PrependReactor("create", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		tries++
		if tries == 4 {
			cancel()
		}
		return tries == 2, nil, errors.New("no leader")
	})
	var out bytes.Buffer
	writer{namespace: "default", label: "written-by", every: time.Millisecond, out: &out}.run(ctx, client)

	printed := regexp.MustCompile(`(?m)^(\S+) [0-9]{19}$`).FindAllStringSubmatch(out.String(), -1)
	g.Expect(printed).To(HaveExactElements(
		ContainElement("written-000000"), ContainElement("written-000002"), ContainElement("written-000003")))
	there, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{LabelSelector: "written-by"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(there.Items).To(HaveLen(3))
}
