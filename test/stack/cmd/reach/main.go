// Command reach is what two Pods of a test run: without arguments it answers every request
// with the name of its Pod; with a URL it asks there until it is answered, and prints that.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	address = ":8080"
	timeout = 2 * time.Second
)

func main() {
	if len(os.Args) == 1 {
		fmt.Fprintln(os.Stderr, serve())
		os.Exit(1)
	}
	_ = wait.PollUntilContextCancel(context.Background(), timeout, true, func(ctx context.Context) (bool, error) {
		answer, err := ask(ctx, os.Args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return false, nil
		}
		fmt.Print(answer)
		return true, nil
	})
}

func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{Addr: address, ReadHeaderTimeout: timeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name)
	})}
	return server.ListenAndServe()
}

func ask(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // the test says where
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request) //nolint:gosec // the test says where
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}
