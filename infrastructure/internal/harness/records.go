package harness

import (
	"context"
	"reflect"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// held holds each write of a manager to a TalosHost to the table of the records: it is
// one of its rows, and the status shows a state that belongs to the records.
func (w *Environment) held(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.holdWrite(o, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.holdWrite(o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return w.holdWrite(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
}

func (w *Environment) holdWrite(object client.Object, write func() error) error {
	w.T.Helper()
	if _, isHost := object.(*infrav1.TalosHost); !isHost {
		return write()
	}
	before, after := &infrav1.TalosHost{}, &infrav1.TalosHost{}
	if err := w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(object), before); err != nil {
		return write()
	}
	if err := write(); err != nil {
		return err
	}
	if w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(object), after) != nil {
		return nil // Its last finalizer is gone.
	}
	g := NewWithT(w.T)
	if records := changedRecords(before, after); len(records) > 0 {
		from, to := taloshost.PhaseOf(before), taloshost.PhaseOf(after)
		g.Expect(slices.ContainsFunc(taloshost.Rules(), func(rule taloshost.Rule) bool {
			leads := rule.To == to || (rule.To == "" && from == to)
			return rule.Allows(before) && leads && !slices.ContainsFunc(records, func(record taloshost.Record) bool { return !slices.Contains(rule.Records, record) })
		})).To(BeTrue(), "no rule writes %v of a host in phase %s, which leads to %s", records, from, to)
	}
	if after.Status.State != before.Status.State {
		g.Expect(taloshost.PhaseOf(after).States()).To(ContainElement(after.Status.State), "a host in phase %s", taloshost.PhaseOf(after))
	}

	return nil
}

// changedRecords are the records in which two hosts differ.
func changedRecords(before, after *infrav1.TalosHost) []taloshost.Record {
	var found []taloshost.Record
	kind := reflect.TypeFor[infrav1.TalosHostSpec]()
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		record := taloshost.Record(name)
		isRecord := slices.ContainsFunc(taloshost.Rules(), func(rule taloshost.Rule) bool { return slices.Contains(rule.Records, record) })
		if isRecord && !reflect.DeepEqual(reflect.ValueOf(before.Spec).Field(i).Interface(), reflect.ValueOf(after.Spec).Field(i).Interface()) {
			found = append(found, record)
		}
	}

	return found
}
