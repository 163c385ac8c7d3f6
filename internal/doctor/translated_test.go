package doctor_test

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir.io/weir/internal/doctor"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
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
	for name, test := range map[string]struct{ mode, asked, instead, smaller string }{
		"of the VIP":    {"gue", "203.0.113.10:80", "10.0.1.3:8080", "10.0.1.3:8070"},
		"of an address": {"nat", "10.0.1.2:80", "10.0.1.3:8081", "10.0.1.3:8071"},
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
		probes := map[[2]netip.AddrPort]bool{}
		probed := func() doctor.Options {
			return doctor.Options{Config: c, Role: doctor.Director, Probes: func() map[[2]netip.AddrPort]bool { return probes }}
		}
		from := connect(t, l, test.asked, test.instead, l.director, "output")
		want(t, of(), check+" of web", doctor.Warn, "from "+test.asked+", which is checked, to "+test.instead, "rules of NAT")
		if got := told(t, l.director, probed(), check); got != (doctor.Finding{}) {
			t.Errorf("%s: of a connection that is no health check a director says %+v", name, got)
		}
		probes[[2]netip.AddrPort{from, netip.MustParseAddrPort(test.asked)}] = true
		want(t, examine(t, l.director, probed()), check+" of web", doctor.Fail, "are translated by this host", "one leads from "+test.asked+" to "+test.instead)
		first := told(t, l.director, probed(), check)
		from = connect(t, l, test.asked, test.smaller, l.director, "output")
		probes[[2]netip.AddrPort{from, netip.MustParseAddrPort(test.asked)}] = true
		if second := told(t, l.director, probed(), check); first.Level != doctor.Fail || first != second {
			t.Errorf("%s: a director says %+v, and then, with another connection, %+v", name, first, second)
		}
	}
}

// told is what a running process says first about a check.
func told(t *testing.T, h *netlab.Host, o doctor.Options, check string) (f doctor.Finding) {
	t.Helper()
	o.BPFFS = h.BPFFS()
	if err := h.Do(func() error {
		found, err := doctor.Running(t.Context(), o)
		if at := slices.IndexFunc(found, func(f doctor.Finding) bool { return strings.HasPrefix(f.Check, check) }); at >= 0 {
			f = found[at]
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return f
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
	want(t, of(c), check+" of web", doctor.Fail, "connections to VIP 203.0.113.10", "one leads from 203.0.113.10:80 to 10.0.1.3:8080")
	running := doctor.Options{Config: c, Role: doctor.Agent}
	first := told(t, l.backend, running, check)
	connect(t, l, "203.0.113.10:80", "10.0.1.3:8070", l.backend, "prerouting")
	if second := told(t, l.backend, running, check); first.Level != doctor.Fail || first != second {
		t.Errorf("an agent says %+v, and then, with another connection, %+v", first, second)
	}
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
// where the backend's host listens. It returns where the connection is from.
func connect(t *testing.T, l lab, asked, instead string, h *netlab.Host, hook string) netip.AddrPort {
	t.Helper()
	listener, err := l.backend.Listen("tcp", instead)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	to := netip.MustParseAddrPort(asked)
	nft(t, h, "add table ip turn; delete table ip turn; add table ip turn; add chain ip turn on { type nat hook "+hook+" priority -100; }; add rule ip turn on ip daddr "+to.Addr().String()+" tcp dport "+strconv.Itoa(int(to.Port()))+" dnat to "+instead)
	conn, err := l.director.DialContext(t.Context(), "tcp", asked)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}
