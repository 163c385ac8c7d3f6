package controller

import (
	"bytes"
	"compress/flate"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// A controller that was rolled back meets what the later version has written: nothing of that group
// is written, removed or begun anew, whatever is wanted of it now. No other Service gets its
// addresses, and users are told. Services of other groups go on.
func TestWhatANewerVersionHasWrittenStays(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	edge := newCompiledGroup("edge")
	edge.want([]*wish{wishServedBy("a", 1, 1), wishServedBy("b", 2, 1), wishServedBy("gone", 3, 1)})
	if err := edge.set(time.Second, nowhere, now); err != nil {
		t.Fatal(err)
	}
	newer := edge.object(0, metav1.OwnerReference{})
	newer.Name = group.ObjectName("edge", 0)
	var text bytes.Buffer
	z, err := flate.NewWriter(&text, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write([]byte(`{"format": 2, "documents": "and more"}`)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	newer.Spec.Services[1].Documents = text.Bytes()
	// A damaged Service beside it is not written anew either: nothing is.
	newer.Spec.Services[2].Documents = []byte("none")

	read := newCompiledGroup("edge")
	if err := read.read(newer, nil); err == nil {
		t.Error("what is damaged is read without an error")
	}
	var told []string
	// It has no client: a write with it ends the test.
	w := &groupWriter{groups: map[string]*compiledGroup{"edge": read}, log: slog.New(slog.DiscardHandler), report: func(of, reason, text string) {
		told = append(told, of+" "+reason+": "+text)
	}}
	w.hold(w.groups)
	groups := map[string]*translate.DirectorGroup{}
	for _, name := range []string{"edge", "core"} {
		groups[name] = &translate.DirectorGroup{Of: &v1alpha1.DirectorGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}, Notice: time.Second}
	}
	a, b, fresh := wishServedBy("a", 1, 2), wishServedBy("b", 2, 2), wishServedBy("fresh", 4, 1)
	a.group, b.group, fresh.group = groups["edge"], groups["core"], groups["edge"] // b was moved to another group meanwhile
	p := newPlan()
	p.of, p.revision = []*wish{a, b, fresh}, 1
	p.read = &resources{groups: []*translate.DirectorGroup{groups["core"], groups["edge"]}, allGroups: []*v1alpha1.DirectorGroup{groups["core"].Of, groups["edge"].Of}}
	refused, err := w.put(t.Context(), p, now)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range refused {
		names = append(names, r.whose.name().Name)
		if !strings.Contains(r.why, "DirectorSet edge-0: read the documents of x/b: was written by a newer version of weir: format 2, and this one reads 1") || !strings.Contains(r.why, "stays as it is") {
			t.Errorf("%s hears %q", r.whose.name(), r.why)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "b", "fresh"}) {
		t.Errorf("refused are %v", names)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "edge Newer: DirectorSet edge-0: ") {
		t.Errorf("users are told %q", told)
	}
	if g := w.groups["core"]; len(g.byName) != 0 {
		t.Errorf("another group forwards %d Services of it, too", len(g.byName))
	}
	shares := []pool.Share{{Address: netip.MustParseAddr("203.0.113.3"), Service: pool.Service{Namespace: "x", Name: "gone"}}, {Address: netip.MustParseAddr("203.0.113.9")}}
	if rest := w.without(shares); len(rest) != 1 || rest[0].Address != shares[1].Address {
		t.Errorf("of what nobody wants any more %v is released, and 203.0.113.3 is forwarded yet", rest)
	}

	// A Service of another group that is now to move to that group stays where it is.
	core := newCompiledGroup("core")
	core.want([]*wish{fresh})
	if err := core.set(time.Second, nowhere, now); err != nil {
		t.Fatal(err)
	}
	core.changedObjects()
	w.groups["core"], p.revision = core, 2
	if _, err := w.put(t.Context(), p, now); err != nil {
		t.Fatal(err)
	}
	if core.byName["x/fresh"] == nil {
		t.Error("a Service is taken out of its group, and the one that is to have it is left as it is")
	}
}
