package judge

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// machinery is the module that holds the loader.
const machinery = "github.com/siderolabs/talos/pkg/machinery"

// fields compares the kinds of documents and their fields that the release
// knows with the list in testdata. The list of a release has only what the
// release before it does not know; configgen refuses by it what the release of
// a contract would.
func fields(t *testing.T, loader Loader) {
	t.Helper()
	known := map[string]bool{}
	for minor := 12; minor < loader.Minor; minor++ {
		for field := range strings.FieldsSeq(string(read(t, list(minor)))) {
			known[field] = true
		}
	}
	var added []string
	for _, field := range all(t, loader) {
		if !known[field] {
			added = append(added, field)
		}
		delete(known, field)
	}
	for field := range known {
		t.Errorf("Talos v1.%d no longer knows %s", loader.Minor, field)
	}
	content := []byte(strings.Join(added, "\n") + "\n")
	if *update {
		if err := os.WriteFile(filepath.Join(stored, "testdata", list(loader.Minor)), content, 0o600); err != nil {
			t.Fatalf("writing the list of fields: %v", err)
		}
	} else if string(read(t, list(loader.Minor))) != string(content) {
		t.Errorf("%s does not list what Talos v1.%d knows: run this test with -update", list(loader.Minor), loader.Minor)
	}
}

func list(minor int) string { return fmt.Sprintf("fields/v1.%d.txt", minor) }

// all are the kinds and fields that the loader knows, sorted: Kind and
// Kind:field.field[].field.
func all(t *testing.T, loader Loader) []string {
	t.Helper()
	var found []string
	legacy, err := loader.Document([]byte("version: v1alpha1\nmachine: {type: worker}\n"))
	if err != nil {
		t.Fatalf("loading the v1alpha1 document: %v", err)
	}
	found = append(found, "v1alpha1")
	walk(reflect.TypeOf(legacy), "v1alpha1:", func(path string) { found = append(found, path) })
	for _, name := range names(t) {
		document, err := loader.Document(fmt.Appendf(nil, "apiVersion: v1alpha1\nkind: %s\n", name))
		if err != nil && strings.Contains(err.Error(), "conflicting link configurations") {
			// One that is two links, which must not have the same name.
			document, err = loader.Document(fmt.Appendf(nil, "apiVersion: v1alpha1\nkind: %s\nname: a\n", name))
		}
		switch {
		case err != nil && strings.Contains(err.Error(), "not registered"):
			continue
		case err != nil:
			t.Fatalf("loading a %s: %v", name, err)
		}
		found = append(found, name)
		walk(reflect.TypeOf(document), name+":", func(path string) { found = append(found, path) })
	}
	slices.Sort(found)

	return slices.Compact(found)
}

var quoted = regexp.MustCompile(`"([A-Z][A-Za-z0-9]+)"`)

// names are the words in the source of the machinery that may be the name of a
// kind. The list of kinds itself is internal, and the schema of the release has
// one that its loader does not know.
func names(t *testing.T) []string {
	t.Helper()
	folder, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", machinery).Output()
	if err != nil {
		t.Fatalf("looking for the machinery: %v", err)
	}
	sources, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(folder)), "config", "types", "*", "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("looking for the source of the machinery: %v", err)
	}
	var found []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatalf("reading the source of the machinery: %v", err)
		}
		for _, match := range quoted.FindAllSubmatch(text, -1) {
			found = append(found, string(match[1]))
		}
	}
	slices.Sort(found)

	return slices.Compact(found)
}

// walk calls visit for each field below a type, down to what reads itself.
func walk(of reflect.Type, path string, visit func(path string)) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch of.Kind() { //nolint:exhaustive // The others have no fields.
	case reflect.Slice, reflect.Array:
		walk(of.Elem(), strings.TrimSuffix(path, ".")+"[].", visit)
	case reflect.Map:
		walk(of.Elem(), path+"*.", visit)
	case reflect.Struct:
		if _, readsItself := reflect.PointerTo(of).MethodByName("UnmarshalYAML"); readsItself {
			return
		}
		for field := range of.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			switch {
			case strings.Contains(options, "inline"):
				walk(field.Type, path, visit)
			case !field.IsExported() || name == "-" || name == "":
			default:
				visit(path + name)
				walk(field.Type, path+name+".", visit)
			}
		}
	}
}
