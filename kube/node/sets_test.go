package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// objectOf returns a DirectorSet. web@3/7 is the Service web in its revision 3, in the set 7.
func objectOf(t *testing.T, number int, services ...string) *v1alpha1.DirectorSet {
	t.Helper()
	o := &v1alpha1.DirectorSet{Spec: v1alpha1.DirectorSetSpec{Group: "edge", Set: int32(number)}}
	o.Name = group.ObjectName("edge", number)
	for _, text := range services {
		name, numbers, _ := strings.Cut(text, "@")
		var revision int64
		var set int
		if _, err := fmt.Sscanf(numbers, "%d/%d", &revision, &set); err != nil {
			t.Fatal(err)
		}
		s := model.Service{Name: text, VIP: netip.AddrFrom4([4]byte{203, 0, 113, name[0]}), Protocol: model.TCP}
		c, err := group.Encode(name, set, revision, []model.Document{{Service: s, Log: model.Log{Generations: []model.Generation{{Number: 1, Slots: 53}}}}})
		if err != nil {
			t.Fatal(err)
		}
		o.Spec.Services = append(o.Spec.Services, c)
	}
	o.Spec.Count = int32(len(services))
	return o
}

func (s *sets) text() string {
	var list []string
	for _, n := range slices.Sorted(maps.Keys(s.bySet())) {
		var names []string
		for _, d := range s.bySet()[n] {
			names = append(names, d.documents[0].Service.Name)
		}
		list = append(list, fmt.Sprintf("%d: %s", n, strings.Join(names, " ")))
	}
	return strings.Join(list, "; ")
}

func TestSets(t *testing.T) {
	s := sets{group: "edge"}
	for _, step := range []struct {
		what    string
		objects []*v1alpha1.DirectorSet
		want    string
	}{
		{"two sets", []*v1alpha1.DirectorSet{objectOf(t, 0, "a@1/0", "b@1/0"), objectOf(t, 1, "c@1/1")}, "0: a@1/0 b@1/0; 1: c@1/1"},
		{"a change", []*v1alpha1.DirectorSet{objectOf(t, 0, "a@2/0", "b@1/0"), objectOf(t, 1, "c@1/1")}, "0: a@2/0 b@1/0; 1: c@1/1"},
		{"one moves, and is in both", []*v1alpha1.DirectorSet{objectOf(t, 0, "a@2/0", "b@1/0"), objectOf(t, 1, "a@3/0", "c@1/1")}, "0: a@3/0 b@1/0; 1: c@1/1"},
		{"it has moved, and keeps its set", []*v1alpha1.DirectorSet{objectOf(t, 0, "b@1/0"), objectOf(t, 1, "a@3/0", "c@1/1")}, "0: a@3/0 b@1/0; 1: c@1/1"},
		{"an object is lost", []*v1alpha1.DirectorSet{objectOf(t, 0, "b@1/0")}, "0: a@3/0 b@1/0; 1: c@1/1"},
		{"it is empty", []*v1alpha1.DirectorSet{objectOf(t, 0, "b@1/0"), objectOf(t, 1)}, "0: b@1/0; 1: "},
	} {
		if err := s.read(step.objects); err != nil {
			t.Fatal(err)
		}
		if got := s.text(); got != step.want {
			t.Errorf("%s: the sets are %q, want %q", step.what, got, step.want)
		}
	}
	if got := fmt.Sprint(s.vips()); got != "[203.0.113.98]" {
		t.Errorf("the VIPs are %s", got)
	}
	// What cannot be read stays what it was.
	damaged := objectOf(t, 0, "b@2/0")
	damaged.Spec.Services[0].Documents = []byte("none")
	if err := s.read([]*v1alpha1.DirectorSet{damaged}); err == nil || !strings.Contains(err.Error(), "DirectorSet edge-0") {
		t.Errorf("a damaged one is read with error %v", err)
	}
	if got := s.text(); got != "0: b@1/0; 1: " {
		t.Errorf("after a damaged one was read the sets are %q", got)
	}
	// What is not as the controller writes it stays what it was, too.
	emptied := objectOf(t, 0, "b@1/0")
	emptied.Spec.Services = nil
	if err := s.read([]*v1alpha1.DirectorSet{emptied}); err == nil || !strings.Contains(err.Error(), "DirectorSet edge-0: has 0 services, and says that they are 1") {
		t.Errorf("an emptied one is read with error %v", err)
	}
	if got := s.text(); got != "0: b@1/0; 1: " {
		t.Errorf("after an emptied one was read the sets are %q", got)
	}
	// What is not the controller's is not forwarded, whatever it is labelled.
	other, named := objectOf(t, 7, "x@9/7"), objectOf(t, 8, "y@9/8")
	other.Spec.Group, other.Name, named.Name = "core", group.ObjectName("core", 7), "mine"
	if err := s.read([]*v1alpha1.DirectorSet{objectOf(t, 0, "b@3/0"), other, named}); err != nil {
		t.Fatal(err)
	}
	if got := s.text(); got != "0: b@3/0; 1: " {
		t.Errorf("beside others' objects the sets are %q", got)
	}
	// A Service of a lost object is another one's now, at whatever revision.
	if err := s.read([]*v1alpha1.DirectorSet{objectOf(t, 0, "b@3/0"), objectOf(t, 1, "c@1000/1")}); err != nil {
		t.Fatal(err)
	}
	if err := s.read([]*v1alpha1.DirectorSet{objectOf(t, 0, "b@3/0", "c@1/0")}); err != nil {
		t.Fatal(err)
	}
	if got := s.text(); got != "0: b@3/0 c@1/0; 1: " {
		t.Errorf("after an object was lost, and its Service is in another one, the sets are %q", got)
	}
}

// A sidecar that begins, and cannot read a Service, leaves the set as its director has it from
// before: to put it without the Service would take that out.
func TestSetsThatCannotBeRead(t *testing.T) {
	s := sets{group: "edge"}
	later := objectOf(t, 0, "a@1/0", "b@2/1", "c@1/1")
	later.Spec.Services[1].Documents, later.Spec.Services[1].VIPs = []byte("none"), []string{"203.0.113.98"}
	if err := s.read([]*v1alpha1.DirectorSet{later}); err == nil || !strings.Contains(err.Error(), "documents of b") {
		t.Errorf("it is read with error %v", err)
	}
	if got := s.text(); got != "0: a@1/0" {
		t.Errorf("what is put is %q, want the set that was read alone", got)
	}
	if got := fmt.Sprint(s.vips()); got != "[203.0.113.97 203.0.113.98 203.0.113.99]" {
		t.Errorf("the VIPs are %s", got)
	}
	if not := s.lacks(map[int]error{0: errors.New("it is refused")}); len(not) != 2 || !strings.Contains(not[1].Error(), "stays as it is: ") {
		t.Errorf("it says that it does not have %v", not)
	}
	if err := s.read([]*v1alpha1.DirectorSet{objectOf(t, 0, "a@1/0", "b@2/1", "c@1/1")}); err != nil {
		t.Fatal(err)
	}
	if got := s.text(); got != "0: a@1/0; 1: b@2/1 c@1/1" || len(s.lacks(nil)) != 0 {
		t.Errorf("when it can be read the sets are %q", got)
	}
}

// Objects that are the same are not looked at again, and of those that are other ones the sets
// that have changed are put.
func TestSetsCostWhatTheyChange(t *testing.T) {
	s := sets{group: "edge"}
	objects := []*v1alpha1.DirectorSet{objectOf(t, 0, "a@1/0", "b@1/0"), objectOf(t, 1, "c@1/1", "d@1/1"), objectOf(t, 2)}
	if err := s.read(objects); err != nil {
		t.Fatal(err)
	}
	first, looked, fronts := maps.Clone(s.bySet()), s.reads, s.fronts()
	if err := s.read(slices.Clone(objects)); err != nil || s.reads != looked {
		t.Errorf("the same objects are looked at again, %d Services, with error %v", s.reads-looked, err)
	}
	objects[1] = objectOf(t, 1, "c@1/1", "d@2/1")
	if err := s.read(objects); err != nil {
		t.Fatal(err)
	}
	next := s.bySet()
	if &next[0][0] != &first[0][0] || &next[1][0] == &first[1][0] || next[1][1].of.Revision != 2 {
		t.Errorf("after a change of set 1 the sets are %v", next)
	}
	if s.fronts() != fronts {
		t.Error("a change behind the same addresses is said to be one of them")
	}
	objects[0] = objectOf(t, 0, "a@1/0")
	if err := s.read(objects); err != nil || s.fronts() == fronts || len(s.vips()) != 3 {
		t.Errorf("after a Service has gone the addresses are %v, with error %v", s.vips(), err)
	}
	// After something was wrong all is looked at again.
	broken := objectOf(t, 1, "c@2/1", "d@2/1")
	broken.Spec.Services[0].Documents = []byte("none")
	objects[1] = broken
	for range 2 {
		if err := s.read(objects); err == nil {
			t.Error("a Service that nobody can read is read")
		}
	}
}
