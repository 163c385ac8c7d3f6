package upkeep

import (
	"reflect"
	"testing"

	"weir.io/weir/internal/model"
)

// TestLoweredMTUs: each row is what an interface had at each look of a process; absent: the look did
// not find it, removed: the kernel has no such link.
func TestLoweredMTUs(t *testing.T) {
	t.Parallel()
	const absent, removed = -1, -2
	for _, test := range []struct {
		name  string
		looks []int
		want  []int // the higher MTU that is told at each look; 0: nothing is told
	}{
		{"unchanged", []int{1500, 1500}, []int{0, 0}},
		{"lowered", []int{1500, 1400, 1400}, []int{0, 1500, 1500}},
		{"raised", []int{1500, 9000}, []int{0, 0}},
		{"raised and lowered", []int{1500, 9000, 8000}, []int{0, 0, 9000}},
		{"raised and set back", []int{1500, 9000, 1500, 1400}, []int{0, 0, 0, 1500}},
		{"lowered and set back", []int{1500, 1400, 1500}, []int{0, 1500, 0}},
		{"absent for a look, then lowered", []int{1500, absent, 1400}, []int{0, 0, 1500}},
		{"lowered, then absent for looks", []int{1500, 1400, absent, absent, 1400}, []int{0, 1500, 0, 0, 1500}},
		{"absent at first", []int{absent, 1400}, []int{0, 0}},
		{"removed", []int{1500, removed}, []int{0, 0}},
		{"another link with its index", []int{1500, removed, 1400}, []int{0, 0, 0}},
	} {
		m := MTUs(nil)
		for i, mtu := range test.looks {
			now, want := []MTU{{Name: "eth1", Index: 3, MTU: 1500}}, []model.LoweredMTU(nil)
			if mtu > 0 {
				now = append(now, MTU{Name: "eth0", Index: 2, MTU: mtu})
			}
			if test.want[i] > 0 {
				want = []model.LoweredMTU{{Interface: "eth0", Now: mtu, Before: test.want[i]}}
			}
			if got := m.Lowered(now, func(int) bool { return mtu == removed }); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: look %d tells %v, want %v", test.name, i, got, want)
			}
		}
		if _, knows := m[2]; knows == (test.looks[len(test.looks)-1] == removed) {
			t.Errorf("%s: at the end the interface is known: %v", test.name, knows)
		}
	}
}
