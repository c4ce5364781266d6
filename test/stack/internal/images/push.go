package images

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
)

// Push puts the image into a registry (host:port, plain HTTP) under its own
// name without the host. What is there already is not sent again.
func (i *Image) Push(ctx context.Context, registry string) error {
	_, repository, tag := split(i.Name)
	pusher := pusher{base: "http://" + registry + "/v2/" + repository}
	if err := pusher.push(ctx, i, tag); err != nil {
		return fmt.Errorf("pushing image %s to registry %s: %w", i.Name, registry, err)
	}
	return nil
}

type pusher struct{ base string }

func (p pusher) push(ctx context.Context, image *Image, tag string) error {
	config := descriptor{MediaType: typeConfig, Digest: digestOf(image.config), Size: int64(len(image.config))}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []descriptor{image.layer},
	})
	if err != nil {
		return err
	}
	if there, err := p.has(ctx, "/manifests/"+tag, digestOf(manifest)); err != nil || there {
		return err
	}
	layer, err := os.Open(filepath.Join(image.dir, layerFile))
	if err != nil {
		return err
	}
	defer func() { _ = layer.Close() }()
	if err := p.blob(ctx, image.layer, layer); err != nil {
		return err
	}
	if err := p.blob(ctx, config, bytes.NewReader(image.config)); err != nil {
		return err
	}
	_, err = p.do(ctx, http.MethodPut, p.base+"/manifests/"+tag, typeManifest, bytes.NewReader(manifest), int64(len(manifest)))
	return err
}

// has reports whether something is there under a digest.
func (p pusher) has(ctx context.Context, path, digest string) (bool, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, p.base+path, nil)
	if err != nil {
		return false, err
	}
	request.Header.Set("Accept", typeManifest)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false, err
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK && response.Header.Get("Docker-Content-Digest") == digest, nil
}

func (p pusher) blob(ctx context.Context, blob descriptor, content io.Reader) error {
	if there, err := p.has(ctx, "/blobs/"+blob.Digest, blob.Digest); err != nil || there {
		return err
	}
	header, err := p.do(ctx, http.MethodPost, p.base+"/blobs/uploads/", "", nil, 0)
	if err != nil {
		return err
	}
	target, err := p.location(header.Get("Location"), blob.Digest)
	if err != nil {
		return err
	}
	_, err = p.do(ctx, http.MethodPut, target, "application/octet-stream", content, blob.Size)
	return err
}

// location is where an upload goes, with the digest of what is sent.
func (p pusher) location(text, digest string) (string, error) {
	base, err := url.Parse(p.base)
	if err != nil {
		return "", err
	}
	target, err := base.Parse(text)
	if err != nil {
		return "", err
	}
	query := target.Query()
	query.Set("digest", digest)
	target.RawQuery = query.Encode()
	return target.String(), nil
}

func (p pusher) do(ctx context.Context, method, target, contentType string, content io.Reader, size int64) (http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, err
	}
	request.ContentLength = size
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		const enough = 500
		text, _ := io.ReadAll(io.LimitReader(response.Body, enough))
		return nil, fmt.Errorf("%s %s: %s: %s", method, target, response.Status, text)
	}
	return response.Header, nil
}
