package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// A node says at once what Services are reached at is forwarded, and all else when it says
// something anyway.
func TestTaken(t *testing.T) {
	at := func(version string, services ...string) *v1alpha1.DirectorSet {
		o := objectOf(t, 0, services...)
		o.ResourceVersion = version
		return o
	}
	begin := time.Now()
	var s sets
	var is taken
	for _, step := range []struct {
		what   string
		after  time.Duration
		object *v1alpha1.DirectorSet
		not    map[int]error
		want   string
	}{
		{"the first set", 0, at("9", "a@1/0"), nil, "9 []"},
		{"other backends", time.Second, at("10", "a@1/0"), nil, "9 []"},
		{"a Service more", time.Second, at("11", "a@1/0", "b@1/0"), nil, "11 []"},
		{"other backends, and some time", time.Second + group.Renew, at("12", "a@1/0", "b@1/0"), nil, "12 []"},
		{"a set is refused", 2*time.Second + group.Renew, at("13", "a@1/0", "b@1/0"), map[int]error{0: errors.New("too\nmany")}, "13 [0:too; many]"},
		{"it is not any more", 2*time.Second + group.Renew, at("13", "a@1/0", "b@1/0"), nil, "13 []"},
		{"a Service less", 3*time.Second + group.Renew, at("14", "b@1/0"), nil, "14 []"},
	} {
		if err := s.read([]*v1alpha1.DirectorSet{step.object}); err != nil {
			t.Fatal(err)
		}
		is.is(&s, step.not, nil, begin.Add(step.after))
		if got := fmt.Sprint(is.Version, " ", fmt.Sprint(is.Not)[3:]); got != step.want {
			t.Errorf("%s: it says %s, want %s", step.what, got, step.want)
		}
	}

	// What cannot be read is not said to be taken.
	broken := at("15", "b@1/0", "c@1/0")
	broken.Spec.Services[1].Documents = []byte("?")
	if err := s.read([]*v1alpha1.DirectorSet{broken}); err == nil {
		t.Error("a Service that nobody can read is read")
	}
	if is.is(&s, nil, nil, begin.Add(time.Hour)); is.Version != "14" {
		t.Errorf("with a Service that nobody can read it says %s", is.Version)
	}
}
