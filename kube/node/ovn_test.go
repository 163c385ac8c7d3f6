package node

import (
	"errors"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// A director that does not follow OVN says why, the first cause first.
func TestLacksOVN(t *testing.T) {
	g := &v1alpha1.DirectorGroup{Spec: v1alpha1.DirectorGroupSpec{OVN: &v1alpha1.DirectorOVN{}}}
	follows := model.OVNStatus{Connected: true, Registered: true}
	for _, c := range []struct {
		group  *v1alpha1.DirectorGroup
		err    error
		status *model.OVNStatus
		want   string
	}{
		{nil, nil, nil, ""},
		{&v1alpha1.DirectorGroup{}, nil, nil, ""},
		{g, nil, &follows, ""},
		{g, errors.New("no Secret"), &follows, "no Secret"},
		{g, nil, nil, "weir run has not been told of it yet"},
		{g, nil, &model.OVNStatus{Problem: "tcp:10.0.0.1:6642: refused"}, "tcp:10.0.0.1:6642: refused"},
		{g, nil, &model.OVNStatus{}, "it has no connection to OVN's Southbound database"},
		{g, nil, &model.OVNStatus{Connected: true, Registered: true, IPsec: true}, "OVN encrypts all tunnels, and its hosts take no packets that are not (IPsec)"},
		{g, nil, &model.OVNStatus{Connected: true, Unregistered: "another has the name"}, "another has the name"},
		{g, nil, &model.OVNStatus{Connected: true}, "OVN's hosts do not know it yet"},
	} {
		if got := lacksOVN(c.group, &certificate{err: c.err}, c.status); got != c.want {
			t.Errorf("with %v and %+v it says %q, want %q", c.err, c.status, got, c.want)
		}
	}
}
