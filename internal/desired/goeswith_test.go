package desired

import (
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Before there is a controller a director knows whether its file goes together with the sets: in a group those are
// the group's, and its own only where they have services.
func TestGoesWith(t *testing.T) {
	file, vxlan := config(web("a", 1)), web("b", 1)
	vxlan.VIP, vxlan.Mode = vxlan.VIP.Next(), model.L2DSR
	if err := vxlan.Segment.UnmarshalText([]byte("vxlan:5001")); err != nil {
		t.Fatal(err)
	}
	sets := func(owner string, services ...model.Service) store.State {
		var documents []model.Document
		for _, s := range services {
			documents = append(documents, model.Document{Service: s})
		}
		return store.State{Sets: map[string]store.Set{owner: {Documents: documents}}}
	}
	with, none := sets("red", vxlan), sets("red")
	for _, c := range []struct {
		name        string
		own, shared store.State
		inGroup     bool
		want        bool
	}{
		{"a set that needs a VTEP", with, store.State{}, false, false},
		{"no set", store.State{}, store.State{}, false, true},
		{"a set of the group's", store.State{}, with, true, false},
		{"an own set that hides the group's of its owner", with, none, true, false},
		{"an empty set that hides nothing", none, with, true, false},
		{"the file's former services", sets(store.OwnerFile, vxlan), store.State{}, false, true},
	} {
		if got := GoesWith(file, c.own, c.shared, c.inGroup); got != c.want {
			t.Errorf("%s: the file goes together with it: %v, want %v", c.name, got, c.want)
		}
	}
}
