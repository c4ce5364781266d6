package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// asWriter in the environment has this test binary be the program.
const asWriter = "AS_WRITER"

func TestMain(m *testing.M) {
	if os.Getenv(asWriter) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

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

// A Pod's log has what is printed as an error too, client-go's own words among it.
func TestTheProgramPrintsNothingOfAnAnswerThatDoesNotEnd(t *testing.T) {
	g, asked := NewWithT(t), make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		w.(http.Flusher).Flush()
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["c"], config.Contexts["c"], config.CurrentContext = &clientcmdapi.Cluster{Server: server.URL}, &clientcmdapi.Context{Cluster: "c"}, "c"
	g.Expect(clientcmd.WriteToFile(*config, kubeconfig)).To(Succeed())
	var printed bytes.Buffer
	program := exec.CommandContext(t.Context(), os.Args[0], "-kubeconfig="+kubeconfig) //nolint:gosec // G204: this binary.
	program.Env, program.Stdout, program.Stderr = append(os.Environ(), asWriter+"=1"), &printed, &printed
	g.Expect(program.Start()).To(Succeed())
	// It asks again when it has given the first answer up.
	for range 2 {
		g.Eventually(asked).WithTimeout(time.Minute).Should(Receive())
	}
	g.Expect(program.Process.Signal(os.Interrupt)).To(Succeed())
	g.Expect(program.Wait()).To(Succeed())
	g.Expect(printed.String()).To(BeEmpty())
}
