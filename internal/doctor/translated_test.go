package doctor_test

import (
	"context"
	"net/netip"
	"strconv"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/netlab"
)

func nft(t *testing.T, h *netlab.Host, rules string) {
	t.Helper()
	if out, err := h.Command(context.Background(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", rules, err, out)
	}
}

// TestTranslatedProbes: health checks that the director's own NAT turns elsewhere succeed or fail
// whatever the backend does.
func TestTranslatedProbes(t *testing.T) {
	l := newLab(t)
	const check = "health checks"
	l.director.Route("203.0.113.0/24", "10.0.1.2")
	for name, test := range map[string]struct{ mode, asked, instead string }{
		"of the VIP":    {"gue", "203.0.113.10:80", "10.0.1.3:8080"},
		"of an address": {"nat", "10.0.1.2:80", "10.0.1.3:8081"},
	} {
		c := config(model.GUE, "10.0.1.2")
		if test.mode == "nat" {
			c = config(model.NAT, "10.0.1.2")
		}
		if f, said := examine(t, l.director, doctor.Options{Config: c})[check]; said {
			t.Errorf("%s: without checks doctor says %+v", name, f)
		}
		c.Services[0].Health = &model.HealthCheck{Kind: model.CheckTCP}
		c.SetDefaults()
		of := func() map[string]doctor.Finding { return examine(t, l.director, doctor.Options{Config: c}) }
		want(t, of(), check, doctor.OK, "translates none", "")
		connect(t, l, test.asked, test.instead, l.director, "output")
		want(t, of(), check+" of web", doctor.Fail, "from "+test.asked+" to "+test.instead, "rules of NAT")
	}
}

// TestTranslatedSockets: where a backend's host turns connections of the VIP to other sockets, the
// agent does not find these.
func TestTranslatedSockets(t *testing.T) {
	l := newLab(t)
	const check = "sockets"
	l.director.Route("203.0.113.0/24", "10.0.1.2")
	c := config(model.GUE, "10.0.1.2")
	of := func(c *model.Config) map[string]doctor.Finding {
		return examine(t, l.backend, doctor.Options{Config: c, Role: doctor.Agent})
	}
	want(t, of(c), check, doctor.OK, "translates none", "")
	connect(t, l, "203.0.113.10:80", "10.0.1.3:8080", l.backend, "prerouting")
	want(t, of(c), check+" of web", doctor.Fail, "from 203.0.113.10:80 to 10.0.1.3:8080", "agent.sockets-elsewhere")
	guests := config(model.GUE, "10.0.1.2")
	guests.Agent.Interfaces = []string{"lo"} // so the client is on a link that packets from directors do not come by
	want(t, of(guests), check, doctor.OK, "translates none", "")
	elsewhere := config(model.GUE, "10.0.1.2")
	elsewhere.Agent.SocketsElsewhere = true
	for name, c := range map[string]*model.Config{"with sockets-elsewhere": elsewhere, "in l2dsr": config(model.L2DSR, "10.0.1.2")} {
		if f, said := of(c)[check+" of web"]; said {
			t.Errorf("%s doctor says %+v", name, f)
		}
	}
}

// connect opens a connection from the director, which NAT on a host turns from what is asked for to
// where the backend's host listens.
func connect(t *testing.T, l lab, asked, instead string, h *netlab.Host, hook string) {
	t.Helper()
	listener, err := l.backend.Listen("tcp", instead)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	to := netip.MustParseAddrPort(asked)
	nft(t, h, "add table ip turn; add chain ip turn on { type nat hook "+hook+" priority -100; }; add rule ip turn on ip daddr "+to.Addr().String()+" tcp dport "+strconv.Itoa(int(to.Port()))+" dnat to "+instead)
	conn, err := l.director.DialContext(t.Context(), "tcp", asked)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
}
