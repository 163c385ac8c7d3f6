package node

import (
	"errors"
	"testing"

	"weir.io/weir/internal/config"
	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// A director that does not follow OVN says why, the first cause first.
func TestLacksOVN(t *testing.T) {
	follows := model.OVNStatus{Connected: true, Registered: true}
	for _, c := range []struct {
		err    error
		status *model.OVNStatus
		want   string
	}{
		{nil, &follows, ""},
		{errors.New("no Secret"), &follows, "no Secret"},
		{nil, nil, "weir run does not follow it: it has not been told of it yet, or becomes a VTEP at its next start"},
		{nil, &model.OVNStatus{Problem: "tcp:10.0.0.1:6642: refused"}, "tcp:10.0.0.1:6642: refused"},
		{nil, &model.OVNStatus{}, "it has no connection to OVN's Southbound database"},
		{nil, &model.OVNStatus{Connected: true, Registered: true, IPsec: true}, "OVN encrypts all tunnels, and its hosts take no packets that are not (IPsec)"},
		{nil, &model.OVNStatus{Connected: true, Unregistered: "another has the name"}, "another has the name"},
		{nil, &model.OVNStatus{Connected: true}, "OVN's hosts do not know it yet"},
	} {
		if got := lacksOVN(c.err, c.status); got != c.want {
			t.Errorf("with %v and %+v it says %q, want %q", c.err, c.status, got, c.want)
		}
	}
}

// A director says nothing of an OVN that its group does not have, and leaves one with the networks in it when its group
// is deleted.
func TestWithoutOVN(t *testing.T) {
	n := &Node{}
	for _, g := range []*v1alpha1.DirectorGroup{nil, {}} {
		if why := n.ofOVN(g); why != nil {
			t.Errorf("of %+v it says %q", g, *why)
		}
	}
	g := groupOf("1m")
	g.Spec.VTEP, g.Spec.OVN = &v1alpha1.DirectorVTEP{}, &v1alpha1.DirectorOVN{Endpoints: []string{"tcp:10.0.0.1:6642"}}
	g.Spec.Segments = []v1alpha1.DirectorSegment{{ID: "geneve:5001", Network: "a"}, {ID: "geneve:5002"}}
	if why := n.ofOVN(g); why == nil || *why != "weir run does not follow it: it has not been told of it yet, or becomes a VTEP at its next start" {
		t.Errorf("of a group with OVN it says %v", why)
	}
	f := factsOf("a", nodeOf(), g)
	text, err := file(withoutOVN(g), nil, &f, announced{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := config.Parse("f", text); err != nil || c.OVN.Given() || len(c.Segments) != 1 || c.Segments[0].ID.ID != 5002 {
		t.Errorf("without OVN there is %+v, %+v, %v", c.OVN, c.Segments, err)
	}
	if len(g.Spec.Segments) != 2 || g.Spec.OVN == nil {
		t.Error("the group itself was changed")
	}
}
