package agent

import (
	"net/netip"
	"testing"

	"weir.io/weir/lab/packet"
)

// callsTo are packets of a client to a backend's own address that a guard must see, whatever
// is in front of their ports.
func callsTo(from, to netip.AddrPort) map[string]frame {
	data := dataOf(packet.ACK)
	data.Src, data.Dst = from.Port(), to.Port()
	calls := map[string]frame{
		"SYN":  segment(from, to, synOf(linuxSYN...)),
		"data": segment(from, to, dataOf(packet.ACK), packet.Zeros(100)),
		"RST":  segment(from, to, packet.TCPHeader{Seq: 5, Flags: packet.RST}),
	}
	if to.Addr().Is4() {
		calls["options"] = frame{packet.IPv4Header{Src: from.Addr(), Dst: to.Addr(), Options: []byte{1, 1, 1, 0}}, data, packet.Zeros(8)}
		calls["first fragment"] = frame{packet.IPv4Header{Src: from.Addr(), Dst: to.Addr(), ID: 7, MF: true}, data, packet.Zeros(8)}
		return calls
	}
	ip := packet.IPv6Header{Src: from.Addr(), Dst: to.Addr()}
	options := packet.ExtensionHeader{Kind: packet.DestOptions}
	calls["first fragment"] = frame{ip, packet.FragmentHeader{ID: 7, More: true}, data, packet.Zeros(8)}
	calls["extension headers"] = frame{ip, packet.ExtensionHeader{Kind: packet.HopByHop}, options, options, packet.FragmentHeader{ID: 8}, data, packet.Zeros(8)}
	calls["eight extension headers"] = frame{ip, options, options, options, options, options, options, options, options, data, packet.Zeros(8)}
	return calls
}

// Packets to a backend itself are let in from the source ranges of its service, and from directors.
// Other ports, hosts without ranges, and answers to the host's own calls are not asked about.
func TestGuardedBackends(t *testing.T) {
	for _, own := range []struct {
		service            string
		backend            netip.AddrPort
		inside, outside    netip.AddrPort
		director, neighbor netip.AddrPort
	}{
		{"four", netip.AddrPortFrom(host4, 443), netip.MustParseAddrPort("10.9.1.2:40000"), netip.MustParseAddrPort("10.10.1.2:40000"),
			netip.MustParseAddrPort("10.0.0.7:40000"), netip.MustParseAddrPort("10.0.0.8:40000")},
		{"six", netip.AddrPortFrom(host6, 443), netip.MustParseAddrPort("[2001:db8:9::2]:40000"), netip.MustParseAddrPort("[2001:db8:a::2]:40000"),
			netip.MustParseAddrPort("[2001:db8:77::7]:40000"), netip.MustParseAddrPort("[2001:db8:77::8]:40000")},
	} {
		t.Run(own.service, func(t *testing.T) {
			h := newRedirectHost(t)
			defer func() { // the host is the other tests', too
				if err := h.set(redirectsHere(nil, nil)); err != nil {
					t.Fatal(err)
				}
			}()
			ranges := prefixes("10.9.0.0/16", "192.0.2.128/25")
			if host6 == own.backend.Addr() {
				ranges = prefixes("2001:db8:9::/48")
			}
			directors := prefixes("10.0.0.7/32", "2001:db8:77::7/128")
			all := func(from netip.AddrPort, refused bool) {
				t.Helper()
				for name, call := range callsTo(from, own.backend) {
					if step := arrivesAs(name+" from "+from.String(), "", call, nil); !refused {
						h.check(step)
					} else {
						step.verdict, step.event = tcShot, own.service+" outside"
						h.check(step)
					}
				}
			}
			set := func(list []redirect) {
				t.Helper()
				if err := h.set(list); err != nil {
					t.Fatal(err)
				}
			}
			all(own.outside, false)
			set(redirectsHere(map[string][]netip.Prefix{own.service: ranges}, directors))
			all(own.inside, false)
			all(own.director, false)
			all(own.outside, true)
			all(own.neighbor, true)
			for name, call := range callsTo(own.outside, netip.AddrPortFrom(own.backend.Addr(), 444)) {
				h.check(arrivesAs(name+" to another port", "", call, nil))
			}
			h.check(arrivesAs("to another host", "", segment(own.outside, netip.AddrPortFrom(own.inside.Addr(), 443), synOf(linuxSYN...)), nil))
			if own.backend.Addr().Is6() {
				many := frame{packet.IPv6Header{Src: own.inside.Addr(), Dst: own.backend.Addr()}}
				for range 9 {
					many = append(many, packet.ExtensionHeader{Kind: packet.DestOptions})
				}
				data := dataOf(packet.ACK)
				data.Src, data.Dst = own.inside.Port(), own.backend.Port()
				h.check(hostStep{name: "more extension headers than are followed", arrives: true, in: append(many, data), verdict: tcShot, event: own.service + " outside"})
			}
			// Others in their place, and none again.
			ranges[0] = prefixes(own.outside.Addr().String() + "/" + map[bool]string{true: "32", false: "128"}[own.backend.Addr().Is4()])[0]
			for range 3 {
				set(redirectsHere(map[string][]netip.Prefix{own.service: ranges}, directors))
				all(own.inside, true)
				all(own.outside, false)
			}
			set(redirectsHere(map[string][]netip.Prefix{own.service: ranges[:1]}, nil))
			all(own.director, true)
			all(own.outside, false)
			set(redirectsHere(nil, nil))
			all(own.inside, false)
			if n := len(h.guards.at); n != 0 {
				t.Errorf("%d guards are left", n)
			}
			set(redirectsHere(nil, nil))
			var key redirectGuardSource
			var there uint8
			for entries := h.GuardSources.Iterate(); entries.Next(&key, &there); {
				t.Errorf("%+v is left", key)
			}
		})
	}
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// redirectsHere is what the shared host does, with source ranges of some services.
func redirectsHere(ranges map[string][]netip.Prefix, directors []netip.Prefix) []redirect {
	c := redirectConfig()
	c.Directors = directors
	for i := range c.Services {
		c.Services[i].SourceRanges = ranges[c.Services[i].Name]
	}
	return redirects(c, host{addresses: map[netip.Addr]int{host4: loopbackIndex, host6: loopbackIndex}})
}
