package kindstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// Archives builds our managers, and writes what the Pods of a management cluster run
// into a folder: archives that "kind load image-archive" reads. It is for who makes
// the cluster without Up. pods adds the image of machines in Pods.
func Archives(ctx context.Context, built parts.Built, dir string, pods bool) ([]string, error) {
	all, err := managerImages(ctx, built, filepath.Join(dir, "managers"))
	if err != nil {
		return nil, err
	}
	others, err := podImages(built, pods)
	if err != nil {
		return nil, err
	}
	var paths []string
	for number, image := range append(all, others...) {
		path := filepath.Join(dir, strconv.Itoa(number)+".tar")
		file, err := os.Create(path)
		if err != nil {
			return nil, fmt.Errorf("making an archive of image %s: %w", image.Name, err)
		}
		if err := errors.Join(image.Archive(file), file.Close()); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// podImages are the images of others that Pods run.
func podImages(built parts.Built, pods bool) ([]*images.Image, error) {
	names := []string{"capi-core-image", "cert-manager-image"}
	if pods {
		names = append(names, PodParts()...)
	}
	var all []*images.Image
	for _, name := range names {
		image, err := images.Open(built.Dir(name))
		if err != nil {
			return nil, err
		}
		all = append(all, image)
	}
	return all, nil
}
