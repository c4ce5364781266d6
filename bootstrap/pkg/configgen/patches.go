package configgen

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

var (
	// errHostnameOfControlPlane: Talos removes an etcd member of the name with
	// which a node joins, so these names are ours alone (design D3).
	errHostnameOfControlPlane = errors.New("it sets the host name of a control plane machine, which must be the name of its Machine; remove it from the patch")
	// errType: what a machine is to be is known to more than its configuration.
	errType = errors.New("it changes machine.type, which generateType or data decides; remove it from the patch")
	// errKey: Kubernetes' own configurations are JSON, and the machinery panics where it
	// copies what JSON does not have.
	errKey = errors.New("it has a key that is no text, or a value such as a date; put those below what is handed on to Kubernetes into quotes")
	// errJSONPatch says that an RFC 6902 patch stands among the others.
	errJSONPatch = errors.New("it is a JSON patch; use configPatches for those")
)

// patching is a configuration while it is being patched. All states are kept,
// so that a patch can be named when Talos refuses what came of all.
type patching struct {
	// states begin with the configuration before any patch; each patch adds one.
	states  []coreconfig.Provider
	patches []patchName
	rules   rules
	// isTrial is that of Input.
	isTrial bool
	// isData reports whether it was not generated: its CAs are what the user says.
	isData bool
	// read is how much was read of what came of JSON patches, in bytes.
	read int
}

// patchName says where a patch stands.
type patchName struct {
	kind  PatchKind
	index int
	path  string
}

func (n patchName) fault(err error) error {
	return &PatchError{Kind: n.kind, Index: n.index, Path: n.path, Err: err}
}

func (p *patching) last() coreconfig.Provider { return p.states[len(p.states)-1] }

// by is the last patch that changes what is asked of a configuration, if any.
func (p *patching) by(asked func(coreconfig.Provider) string) (patchName, bool) {
	for i := len(p.patches); i > 0; i-- {
		if asked(p.states[i]) != asked(p.states[i-1]) {
			return p.patches[i-1], true
		}
	}
	return patchName{}, false
}

// name states the host name.
func (p *patching) name(hostname string) (coreconfig.Provider, error) {
	cfg, err := setHostname(p.last(), hostname)
	if err == nil {
		return cfg, nil
	}
	if name, patched := p.by(sectionHostname); patched {
		return nil, name.fault(err)
	}
	return nil, &InvalidError{Err: err}
}

// add takes what came of a patch, unless it changes what is not the user's.
func (p *patching) add(name patchName, patched coreconfig.Provider) error {
	if err := checkKeys(patched); err != nil {
		return name.fault(err)
	}
	before := p.last()
	if typeOf(patched) != typeOf(before) {
		return name.fault(errType)
	}
	renamed := hostnameOf(patched) != hostnameOf(before) || sectionHostname(patched) != sectionHostname(before)
	if renamed && roleOf(patched) == RoleControlPlane {
		return name.fault(errHostnameOfControlPlane)
	}
	if err := checkAuthorities(before, patched); err != nil && !p.isTrial && !p.isData {
		return name.fault(err)
	}
	if _, err := p.rules.encode(patched); err != nil {
		return name.fault(err)
	}
	p.states, p.patches = append(p.states, patched), append(p.patches, name)
	return nil
}

// checkKeys finds keys and values with which a configuration cannot be copied. Only
// the machinery knows which of its fields take any, so it is asked: its panic names a
// type, and nothing of the content.
func checkKeys(cfg coreconfig.Provider) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w (%v)", errKey, cause)
		}
	}()
	_ = cfg.Clone()

	return nil
}

// applyJSON applies RFC 6902 operations to the v1alpha1 document alone: Talos
// takes them on configurations of one document only, and every generated one
// has several.
func (p *patching) applyJSON(operations [][]byte) error {
	if len(operations) == 0 {
		return nil
	}
	document, err := container.NewV1Alpha1(p.last().RawV1Alpha1()).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return &InvalidError{Err: err}
	}
	for i, operation := range operations {
		name := patchName{kind: KindJSONPatch, index: i, path: pathOf(operation)}
		if err := yamlsize.CheckJSON(operation, maxBytes); err != nil {
			return name.fault(err)
		}
		patch, err := jsonpatch.DecodePatch(fmt.Appendf(nil, "[%s]", operation))
		if err != nil {
			return name.fault(err)
		}
		if document, err = configpatcher.JSON6902(document, patch); err != nil {
			return name.fault(p.explainPath(err))
		}
		if len(document) > p.rules.limit {
			return name.fault(tooLong(p.rules.limit))
		}
		if err := p.readAgain(document); err != nil {
			return name.fault(err)
		}
		read, err := configloader.NewFromBytes(document)
		if err != nil {
			return name.fault(err)
		}
		patched, err := replaceV1Alpha1(p.last(), read.RawV1Alpha1())
		if err != nil {
			return name.fault(err)
		}
		if err := p.add(name, patched); err != nil {
			return err
		}
	}
	return nil
}

// readAgain refuses to read a configuration that takes too long to read, or at admission has
// come to take too long by being read after each patch. What was admitted is rendered.
func (p *patching) readAgain(document []byte) error {
	size, err := yamlsize.MeasureIndented(document, maxRead)
	if err != nil {
		return err
	}
	if p.read += size; p.isTrial && p.read > maxReadAgain {
		return errReadTooOften
	}

	return nil
}

// explainPath adds to a JSON patch's error what else may be the reason.
func (p *patching) explainPath(err error) error {
	if !has[*k8s.KubeletConfigV1Alpha1](p.last()) {
		return err
	}
	return fmt.Errorf("%w (configPatches see the v1alpha1 document alone, and this contract states most of Kubernetes in documents of their own: use strategicPatches for those)", err)
}

func pathOf(operation []byte) string {
	var fields struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(operation, &fields) != nil {
		return ""
	}
	return fields.Path
}

func replaceV1Alpha1(cfg coreconfig.Provider, document *v1alpha1.Config) (coreconfig.Provider, error) {
	if document == nil {
		return nil, errNoMachineConfiguration
	}
	documents := cfg.Clone().Documents()
	for i := range documents {
		if documents[i].Kind() == v1alpha1.Version {
			documents[i] = document
		}
	}
	return container.New(documents...)
}

func (p *patching) applyStrategic(kind PatchKind, patches []string) error {
	for i, text := range patches {
		name := patchName{kind: kind, index: i}
		if err := CheckPatch(text); err != nil {
			return name.fault(err)
		}
		patch, err := configpatcher.LoadPatch([]byte(text))
		if err != nil {
			return name.fault(err)
		}
		strategic, ok := patch.(configpatcher.StrategicMergePatch)
		if !ok {
			return name.fault(errJSONPatch)
		}
		patched, err := configpatcher.StrategicMerge(p.last(), strategic)
		if err != nil {
			return name.fault(err)
		}
		if err := p.add(name, patched); err != nil {
			return err
		}
	}
	return nil
}

// finish encodes and judges cfg, which is the last state with what is set after
// the patches. When it is refused, the patch is named after which all states
// are.
func (p *patching) finish(cfg coreconfig.Provider) ([]byte, error) {
	encoded, err := p.rules.judge(cfg)
	if err == nil {
		return encoded, nil
	}
	for i := len(p.patches); i > 0; i-- {
		_, after := p.rules.judge(p.states[i])
		if after == nil {
			break
		}
		if _, before := p.rules.judge(p.states[i-1]); before == nil {
			name := p.patches[i-1]
			return nil, &PatchError{Kind: name.kind, Index: name.index, Path: name.path, Applies: true, Err: after}
		}
	}
	return nil, &InvalidError{Err: err}
}

// rules are what a configuration must fulfil.
type rules struct {
	platform platform
	// reader is the release that will read the configuration.
	reader release
	// limit is how long the configuration may be, in bytes.
	limit int
}

// judge validates as Talos does and encodes.
func (r rules) judge(cfg coreconfig.Provider) ([]byte, error) {
	encoded, err := r.encode(cfg)
	if err != nil {
		return nil, err
	}
	// What is handed over is what must be valid: read it back, as Talos will.
	read, err := load(encoded)
	if err != nil {
		return nil, err
	}
	// A document that the release does not know often states what a section
	// does, too: both are told.
	if err := errors.Join(r.reader.knows(encoded), conflicts(read)); err != nil {
		return nil, err
	}
	if _, err := read.ValidateAsClient(r.platform); err != nil {
		return nil, err
	}
	return encoded, nil
}
