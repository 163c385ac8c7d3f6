package controller

import (
	"testing"

	"k8s.io/utils/ptr"

	"weir.io/weir/kube/group"
	"weir.io/weir/kube/v1alpha1"
)

// The condition of a group says which directors do not follow OVN, and why.
func TestOVNCondition(t *testing.T) {
	g := &v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{OVN: &v1alpha1.DirectorOVN{}}}
	for _, c := range []struct {
		directors               []group.Candidate
		status, reason, message string
	}{
		{[]group.Candidate{{Presence: group.Presence{Node: "a", OVN: ptr.To("")}}, {Presence: group.Presence{Node: "b", OVN: ptr.To("")}}}, "True", v1alpha1.ReasonFollowed, "2 directors follow OVN's Southbound database, and its hosts know them"},
		{[]group.Candidate{{Presence: group.Presence{Node: "a", OVN: ptr.To("")}}, {Presence: group.Presence{Node: "b", OVN: ptr.To("there is no way to it")}}}, "False", v1alpha1.ReasonNotFollowed, "1 of 2 directors do not follow OVN: b: there is no way to it"},
		{[]group.Candidate{{Presence: group.Presence{Node: "a"}}}, "False", v1alpha1.ReasonNotFollowed, "1 of 1 directors do not follow OVN: a: its weir-kube has not said so yet, or is of a version that knows no OVN"},
		{nil, "False", v1alpha1.ReasonNotFollowed, "the group has no directors"},
	} {
		got, wanted := ovnOf(g, c.directors)
		if !wanted || string(got.Status) != c.status || got.Reason != c.reason || got.Message != c.message {
			t.Errorf("of %+v it says %+v, %v", c.directors, got, wanted)
		}
	}
	if _, wanted := ovnOf(&v1alpha1.DirectorGroup{}, nil); wanted {
		t.Error("a group without OVN says something of it")
	}
}
