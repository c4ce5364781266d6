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
	for {
		answer, err := ask(os.Args[1])
		if err == nil {
			fmt.Print(answer)
			return
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(timeout)
	}
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

func ask(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
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
