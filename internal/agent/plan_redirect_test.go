package agent

import (
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/model"
)

func TestRedirectPlan(t *testing.T) {
	c := redirectConfig()
	c.Services[1].RedirectTo = []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/64")}
	c.Agent.Guests = []netip.Prefix{netip.PrefixFrom(third6, 127).Masked()}
	c.Services[0].SourceRanges, c.Directors = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}
	list := redirects(c, host{addresses: map[netip.Addr]int{host4: loopbackIndex}, elsewhere: elsewhere{addresses: map[netip.Addr]bool{peer4: true}}})
	type want struct {
		ambiguous bool
		shared    bool
		prefixes  []netip.Prefix
		here      []netip.AddrPort
		callers   []netip.Prefix
	}
	whole := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	wants := map[string]want{
		"four": {prefixes: []netip.Prefix{whole(host4), whole(peer4)}, here: []netip.AddrPort{netip.AddrPortFrom(host4, 443), netip.AddrPortFrom(peer4, 443)},
			callers: []netip.Prefix{c.Services[0].SourceRanges[0], c.Directors[0]}},
		"six":         {shared: true, prefixes: c.Services[1].RedirectTo},
		"shared six":  {shared: true, prefixes: []netip.Prefix{whole(host6), whole(peer6)}},
		"shared four": {shared: true, prefixes: []netip.Prefix{whole(peer4)}, here: []netip.AddrPort{netip.AddrPortFrom(peer4, 8080)}},
		"port":        {shared: true, prefixes: []netip.Prefix{whole(peer4)}, here: []netip.AddrPort{netip.AddrPortFrom(peer4, 8080)}},
		"alike":       {ambiguous: true, shared: true, prefixes: []netip.Prefix{whole(third6)}, here: []netip.AddrPort{netip.AddrPortFrom(third6, 443)}},
		"alike too":   {ambiguous: true, shared: true, prefixes: []netip.Prefix{whole(third6)}, here: []netip.AddrPort{netip.AddrPortFrom(third6, 443)}},
	}
	if len(list) != len(wants) {
		t.Errorf("%d services are redirected, want %d", len(list), len(wants))
	}
	for _, r := range list {
		w := wants[r.name]
		if r.ambiguous != w.ambiguous || r.shared != w.shared || !slices.Equal(r.prefixes, w.prefixes) || !slices.Equal(r.here, w.here) || !slices.Equal(r.callers, w.callers) {
			t.Errorf("%s: %+v, want %+v", r.name, r, w)
		}
	}
}

// A VIP keeps its index, and with it what is counted, whoever comes and goes; nobody gets
// that of one whose entry is still in the kernel.
func TestRedirectIndexesStay(t *testing.T) {
	list := redirects(redirectConfig(), host{})
	first, err := newRedirectTables(list, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.fresh) != len(list) || slices.Contains(first.fresh, noService) {
		t.Errorf("fresh indexes %v of %d services", first.fresh, len(list))
	}
	gone := list[0]
	more := redirect{name: "new", vip: netip.MustParseAddrPort("192.0.2.30:80")}
	second, err := newRedirectTables(append([]redirect{more}, list[1:]...), first.vips, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list[1:] {
		if key := redirectEndpoint(r.vip); second.vips[key] != first.vips[key] {
			t.Errorf("%s has index %d, had %d", r.name, second.vips[key], first.vips[key])
		}
	}
	if index := second.vips[redirectEndpoint(more.vip)]; index == first.vips[redirectEndpoint(gone.vip)] || !slices.Equal(second.fresh, []uint32{index}) {
		t.Errorf("the new service has index %d, and %v are fresh", index, second.fresh)
	}
	if _, err := newRedirectTables(list, nil, uint32(len(list))); err == nil {
		t.Error("more services than there are places give no error")
	}
}

// A host that has neither backends nor clients of a redirected service serves as before.
func TestWhoServes(t *testing.T) {
	for name, test := range map[string]struct {
		config model.Config
		own    netip.Addr
		want   bool
	}{
		"a backend's":           {redirectConfig(), host4, true},
		"a client's":            {redirectConfig(), client4, false},
		"nobody's":              {testConfig(), client4, true},
		"a tunnelled backend's": {redirectConfig(), otherPeer4, true},
	} {
		p, err := newPlan(test.config, host{addresses: map[netip.Addr]int{test.own: loopbackIndex}})
		if err != nil {
			t.Fatal(err)
		}
		if p.serves() != test.want {
			t.Errorf("%s: serves %v, want %v", name, p.serves(), test.want)
		}
	}
}

// The reasons for which connections fall back are those that programs count.
func TestFallbackCausesAreEvents(t *testing.T) {
	names, err := redirectEventNames()
	if err != nil {
		t.Fatal(err)
	}
	var causes []string
	for _, name := range names {
		if model.FallbackHost(name) != "" {
			causes = append(causes, name)
		}
	}
	// Neither is why: an attempt that goes on, or a connection that somebody has, or nobody's.
	others := []string{"asked", "asks_already", "taken", "not_asked_for", "foreign", "full", "error", "clash", "early", "received", "echoed", "outside"}
	if len(causes) != 14 || len(causes)+len(others) != len(names) {
		t.Errorf("of the events %v, %v are why connections fall back, and %v are not", names, causes, others)
	}
	for _, name := range others {
		if !slices.Contains(names, name) || slices.Contains(causes, name) {
			t.Errorf("%q is no event, or is why a connection falls back", name)
		}
	}
}
