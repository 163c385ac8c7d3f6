package group

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// Directors' findings come to all directors, also to those that wrote them. Findings that
// change, go or are lost are written again, and a director's findings go with the director.
func TestViewsAreFollowed(t *testing.T) {
	c := newCluster(t, false)
	one, two := c.open().FollowViews(t.Context()), c.open().FollowViews(t.Context())
	view := func(vip string, up, down int) model.View {
		v := model.View{ServiceID: model.ServiceID{VIP: netip.MustParseAddr(vip), Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 90}}}
		for i := range up + down {
			b := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), 0)
			if i < up {
				v.Up = append(v.Up, b)
			} else {
				v.Down = append(v.Down, b)
			}
		}
		return v
	}
	finds := func(what string, v *Views, want ...model.View) {
		t.Helper()
		etcdlab.Eventually(t, what, func() error {
			got := v.Views()
			slices.SortFunc(got, func(a, b model.View) int {
				if by := a.VIP.Compare(b.VIP); by != 0 {
					return by
				}
				return len(a.Up) - len(b.Up)
			})
			if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
				return fmt.Errorf("the views are %+v, want %+v", got, want)
			}
			return nil
		})
	}
	web, dns := view("192.0.2.1", 3, 0), view("2001:db8::1", 1, 1)
	one.Report([]model.View{web, dns})
	finds("the other director", two, web, dns)
	finds("itself", one, web, dns)
	fallen := view("192.0.2.1", 2, 1)
	two.Report([]model.View{fallen})
	finds("both", one, fallen, web, dns)
	one.Report([]model.View{web})
	finds("what has gone", two, fallen, web)

	leases, err := c.Client().Leases(t.Context())
	if err != nil || len(leases.Leases) != 2 {
		t.Fatalf("there are the leases %v, %v, want two", leases, err)
	}
	lost := int64(0)
	for _, l := range leases.Leases {
		response, err := c.Client().Revoke(t.Context(), l.ID)
		if err != nil {
			t.Fatal(err)
		}
		if lost == 0 {
			lost = response.Header.Revision
		}
	}
	c.writtenAgain(lost, c.Prefix+"/views/", 2)
	finds("what is written again", one, fallen, web)
	if _, err := c.Client().Put(t.Context(), c.Prefix+"/views/0000000000000001/x", "{"); err != nil {
		t.Fatal(err)
	}
	two.Report(nil)
	finds("no view that cannot be read", one, web)
}
