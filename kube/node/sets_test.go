package node

import (
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
		c, err := group.Encode(name, set, revision, []model.Document{{Service: s}})
		if err != nil {
			t.Fatal(err)
		}
		o.Spec.Services = append(o.Spec.Services, c)
	}
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
	var s sets
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
}
