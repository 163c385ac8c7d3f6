package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// wishServedBy returns a wish for a Service with the number of backends.
func wishServedBy(name string, number, backends int) *wish {
	w := wishOf(name)
	s := model.Service{Name: "x/" + name + "/80-tcp", VIP: netip.AddrFrom4([4]byte{203, 0, byte(113 + number>>8), byte(number)}), Protocol: model.TCP,
		Port: model.PortRange{First: 80, Last: 80}, Mode: model.NAT, SNAT: true}
	for i := range backends {
		b := model.NewBackend()
		b.Name, b.Address, b.Port = fmt.Sprintf("pod-%d", i), netip.AddrFrom4([4]byte{10, byte(number), byte(i >> 8), byte(i)}), 8080
		s.Backends = append(s.Backends, b)
	}
	w.made.services = []model.Service{s}
	if why := valid(w.made.services); why != "" {
		panic(why)
	}
	return w
}

func nowhere(string) []model.Document { return nil }

// changedObjects returns which objects are to be written, and marks them as written.
func (g *compiledGroup) changedObjects() string {
	var list []string
	for _, n := range slices.Sorted(maps.Keys(g.objects)) {
		if o := g.objects[n]; o.changed {
			o.changed, o.loses, o.of = false, false, g.object(n, metav1.OwnerReference{})
			list = append(list, fmt.Sprintf("%s with %d", o.of.Name, o.of.Spec.Count))
		}
	}
	return strings.Join(list, ", ")
}

// A change of one Service compiles only this Service, and writes the object that has it.
func TestOnlyWhatChangesIsWritten(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	g := newCompiledGroup("edge")
	var wishes []*wish
	for i := range 200 {
		wishes = append(wishes, wishServedBy(fmt.Sprintf("s%03d", i), i, 3))
	}
	pass := func() {
		t.Helper()
		if refused := g.want(wishes); len(refused) > 0 {
			t.Fatalf("some are refused: %v", refused[0].why)
		}
		if err := g.set(time.Second, nowhere, now); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	if len(g.objects) < 2 || len(g.objects) > 4 {
		t.Errorf("200 Services of 3 pods are in %d objects", len(g.objects))
	}
	g.changedObjects()
	pass()
	if got := g.changedObjects(); got != "" {
		t.Errorf("without a change %s are written", got)
	}
	before := g.byName["x/s150"]
	wishes[150] = wishServedBy("s150", 150, 4)
	pass()
	after := g.byName["x/s150"]
	if got, want := g.changedObjects(), fmt.Sprintf("%s with %d", group.ObjectName("edge", before.object), len(g.objects[before.object].services)); got != want {
		t.Errorf("after a change of one Service %q are written, want %q", got, want)
	}
	if after.written.Revision != before.written.Revision+1 || len(after.documents[0].Log.Generations) != 2 || after.written.Set != before.written.Set {
		t.Errorf("it is written as %+v, and was %+v", after.written, before.written)
	}
	// A Service that is due is compiled without a change, and then nothing is due any more.
	if want := now.Add(61 * time.Second); !g.due.Equal(want) {
		t.Errorf("it is due at %v, want %v", g.due, want)
	}
	now = now.Add(61 * time.Second)
	pass()
	if c := g.byName["x/s150"]; len(c.documents[0].Log.Generations) != 1 || !g.due.IsZero() || g.changedObjects() == "" {
		t.Errorf("after that it has %d generations, and something is due at %v", len(c.documents[0].Log.Generations), g.due)
	}

	// The next process finds what this one has written, and has nothing to write.
	next := newCompiledGroup("edge")
	for _, n := range slices.Sorted(maps.Keys(g.objects)) {
		if err := next.read(g.object(n, metav1.OwnerReference{}), nil); err != nil {
			t.Fatal(err)
		}
	}
	g = next
	pass()
	if got := g.changedObjects(); got != "" {
		t.Errorf("the next process writes %s", got)
	}
	wishes = wishes[:1]
	pass()
	if got := g.changedObjects(); !strings.HasPrefix(got, "edge-0 with 1, edge-1 with 0") {
		t.Errorf("after all but one are gone it writes %s", got)
	}
}

// A Service that outgrows its object moves to another object, which is written first, and stays in
// the same set of the directors. If a Service is in two objects, the later revision counts.
func TestServicesMoveBetweenObjects(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	g := newCompiledGroup("edge")
	small, large := wishServedBy("small", 1, 1), wishServedBy("large", 2, 1)
	set := func() {
		t.Helper()
		g.want([]*wish{small, large})
		if err := g.set(time.Second, nowhere, now); err != nil {
			t.Fatal(err)
		}
	}
	set()
	first := g.object(0, metav1.OwnerReference{})
	g.changedObjects()
	// Addresses and names that hardly compress.
	large = wishServedBy("large", 2, 0)
	for port := range 8 {
		s := wishServedBy("large", 2, 8000).made.services[0]
		s.Name, s.Port = fmt.Sprintf("x/large/%d-tcp", 80+port), model.PortRange{First: uint16(80 + port), Last: uint16(80 + port)}
		for i := range s.Backends {
			b := &s.Backends[i]
			x := uint32(8000*port+i) * 2654435761
			b.Address, b.Name = netip.AddrFrom4([4]byte{10, byte(x >> 24), byte(i >> 8), byte(i)}), fmt.Sprintf("pod-%08x-%08x", x, x*x+7)
		}
		large.made.services = append(large.made.services, s)
	}
	large.made.services = large.made.services[1:]
	set()
	c := g.byName["x/large"]
	if size := group.SizeOf(&c.written); size < group.Full {
		t.Fatalf("a large one takes %d bytes: that is not enough to move", size)
	}
	if c.object != 1 || c.written.Set != 0 || !g.objects[0].loses || g.objects[1].loses || !g.objects[1].changed {
		t.Errorf("the large one is in object %d and set %d; the objects are %+v and %+v", c.object, c.written.Set, g.objects[0], g.objects[1])
	}
	second := g.object(1, metav1.OwnerReference{})
	both := newCompiledGroup("edge")
	for _, o := range []*v1alpha1.DirectorSet{first, second} {
		if err := both.read(o, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := both.byName["x/large"]; got.object != 1 || !both.objects[0].changed || len(both.objects[0].services) != 1 {
		t.Errorf("who finds it in both takes the one of object %d", got.object)
	}
}

// Of two Services whose replies could not be told apart, at most one is forwarded.
func TestClashes(t *testing.T) {
	a, b, c := wishServedBy("a", 1, 2), wishServedBy("b", 1, 2), wishServedBy("c", 2, 2)
	for _, w := range []*wish{a, b} {
		w.made.services[0].SNAT = false
	}
	b.made.services[0].VIP = netip.MustParseAddr("203.0.113.99")
	g := newCompiledGroup("edge")
	refused := g.want([]*wish{a, b, c})
	if len(refused) == 0 || len(g.wanted)+len(refused) != 3 || g.wanted["x/c"].services == nil {
		t.Errorf("of three %d are wanted, and %v are refused", len(g.wanted), refused)
	}
}

// A Service of a DirectorSet that cannot be read is written anew: with its history if the process
// knows it, or else with a new one. It does not hold up others.
func TestWhatCannotBeReadIsWrittenAnew(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	known := newCompiledGroup("edge")
	set := func(g *compiledGroup, backends int) {
		t.Helper()
		if refused := g.want([]*wish{wishServedBy("a", 1, backends), wishServedBy("b", 2, 1)}); len(refused) > 0 {
			t.Fatalf("some are refused: %v", refused[0].why)
		}
		if err := g.set(time.Second, nowhere, now); err != nil {
			t.Fatal(err)
		}
	}
	set(known, 1)
	set(known, 2)
	known.changedObjects()
	for name, damage := range map[string]func(c *v1alpha1.CompiledService){
		"no compressed text": func(c *v1alpha1.CompiledService) { c.Documents = []byte("none") },
		"half of it":         func(c *v1alpha1.CompiledService) { c.Documents = c.Documents[:len(c.Documents)/2] },
		"a ring of no slots": func(c *v1alpha1.CompiledService) {
			documents, err := group.Decode(c)
			if err != nil {
				t.Fatal(err)
			}
			documents[0].Log.Generations = slices.Clone(documents[0].Log.Generations)
			documents[0].Log.Generations[1].Slots = 0
			if *c, err = group.Encode(c.Name, int(c.Set), c.Revision, documents); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, before := range []*compiledGroup{known, nil} {
			o := known.object(0, metav1.OwnerReference{})
			o.Spec.Services[0].Revision = 41
			damage(&o.Spec.Services[0])
			g := newCompiledGroup("edge")
			if err := g.read(o, before); err == nil || !strings.Contains(err.Error(), "DirectorSet edge-0: ") || !strings.Contains(err.Error(), "x/a") {
				t.Errorf("%s is read with error %v", name, err)
			}
			set(g, 2)
			a, b := g.byName["x/a"], g.byName["x/b"]
			generations := 1
			if before != nil {
				generations = 2
			}
			if len(a.documents[0].Log.Generations) != generations || a.written.Revision != 42 || b.written.Revision != 1 {
				t.Errorf("%s: of a group that is known: %v, it is written as %+v with %d generations", name, before != nil, a.written, len(a.documents[0].Log.Generations))
			}
			if got := g.changedObjects(); got != "edge-0 with 2" {
				t.Errorf("%s: %q are written, want edge-0 with 2", name, got)
			}
		}
	}
}

// Services of an object that was removed by hand are written again, with their histories, and as
// later revisions.
func TestWhatIsRemovedIsWrittenAgain(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	known, g := newCompiledGroup("edge"), newCompiledGroup("edge")
	for _, backends := range []int{1, 2} {
		known.want([]*wish{wishServedBy("a", 1, backends)})
		if err := known.set(time.Second, nowhere, now); err != nil {
			t.Fatal(err)
		}
	}
	g.keep(known)
	g.want([]*wish{wishServedBy("a", 1, 2)})
	if err := g.set(time.Second, nowhere, now); err != nil {
		t.Fatal(err)
	}
	if a := g.byName["x/a"]; a.written.Revision != 3 || len(a.documents[0].Log.Generations) != 2 || len(g.lost) != 0 {
		t.Errorf("it is written as %+v with %d generations, and %d are lost", a.written, len(a.documents[0].Log.Generations), len(g.lost))
	}
	if got := g.changedObjects(); got != "edge-0 with 1" {
		t.Errorf("%q are written, want edge-0 with 1", got)
	}
}
