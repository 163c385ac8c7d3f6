package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
)

// setOf returns a set of services with their logs, the nth of its kind.
func setOf(set, services, backends int) []model.Document {
	list := make([]model.Document, services)
	for i := range list {
		s := beside(backends)[0]
		s.Name, s.VIP = fmt.Sprintf("s%d-%d", set, i), netip.AddrFrom4([4]byte{203, 0, byte(set), byte(i + 1)})
		list[i] = model.Document{Service: s, Log: history.Advance(model.Log{}, &s, time.Now())}
	}
	return list
}

// When a set changes, only its own services are checked. When its generations begin to place
// connections, no service is checked. A contradiction with another set is still found.
func TestChangesCostWhatTheyChange(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("a", 2))
		const sets, services = 10, 5
		for set := range sets {
			if _, err := d.Give(t.Context(), fmt.Sprintf("kube.edge.%d", set), setOf(set, services, 3)); err != nil {
				t.Fatal(err)
			}
		}
		before := d.joined.work
		next := setOf(4, services, 2)
		next[0].Log = history.Announce(next[0].Log, model.Log{}, time.Second)
		if _, err := d.Give(t.Context(), "kube.edge.4", next); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if now := d.joined.work; now.joins-before.joins != 1 || now.validated-before.validated != services {
			t.Errorf("one set of %d services, of %d sets, that is another one has all joined %d times, and %d services looked at",
				services, sets, now.joins-before.joins, now.validated-before.validated)
		}
		refused := (*RefusedError)(nil)
		twice := setOf(4, services, 2)
		twice[2].Service.Backends[0].Address = netip.MustParseAddr("203.0.9.1") // the VIP of another one
		if _, err := d.Give(t.Context(), "kube.edge.4", twice); !errors.As(err, &refused) || !refused.Conflict {
			t.Errorf("a backend that is another set's VIP is taken, with error %v", err)
		}
		bad := setOf(5, services, 2)
		bad[3].Service.Backends[1].VLAN = 5000
		if _, err := d.Give(t.Context(), "kube.edge.5", bad); !errors.As(err, &refused) {
			t.Errorf("a service that is not valid is taken, with error %v", err)
		}
		// Another file may make of what was valid something that is not.
		file := config(web("a", 2))
		file.Director.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("203.0.9.1")}, Ports: model.PortRange{First: 1, Last: 1023}}
		if err := d.SetFile(file); err == nil {
			t.Error("a file whose full NAT has a set's VIP and port is taken")
		}
		file.Director.SNAT.Ports = model.DefaultSNATPorts
		if err := d.SetFile(file); err != nil {
			t.Errorf("a file whose full NAT has other ports of a set's VIP is refused: %v", err)
		}
	})
}
