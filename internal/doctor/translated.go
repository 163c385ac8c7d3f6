package doctor

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// translation is a connection whose destination this host's NAT has changed: that of nftables,
// iptables, ip_vs with conntrack, or of containers whose ports are published.
type translation struct {
	protocol model.Protocol
	from     netip.Addr
	to       netip.AddrPort // that was asked for
	instead  netip.AddrPort
}

// Of the kernel's connection tracking (include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// nf_conntrack_common.h).
const (
	ctStatusMask = 26     // since Linux 5.18; older kernels list all connections
	ipsDstNAT    = 1 << 5 // the destination is translated
)

// translations calls a function for each connection that this host translates now, until that
// returns false. Where connections are not tracked there are none, and the kernel is not asked,
// because that would load its connection tracking.
func translations(take func(translation) bool) error {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if count, bad := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || bad != nil || count == 0 {
		return nil
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, ipsDstNAT)))
	request.AddData(nl.NewRtAttr(ctStatusMask, binary.BigEndian.AppendUint32(nil, ipsDstNAT)))
	return request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		t, is := readTranslation(message)
		return !is || take(t)
	})
}

// readTranslation reads one connection; false: its destination is not translated.
func readTranslation(message []byte) (t translation, is bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return t, false
	}
	top := attributes(message[nl.SizeofNfgenmsg:])
	if status := top[nl.CTA_STATUS]; len(status) < 4 || binary.BigEndian.Uint32(status)&ipsDstNAT == 0 {
		return t, false
	}
	var back netip.AddrPort
	if t.protocol, back, t.to, is = readTuple(top[nl.CTA_TUPLE_ORIG]); !is {
		return t, false
	}
	t.from = back.Addr()
	_, t.instead, _, is = readTuple(top[nl.CTA_TUPLE_REPLY])
	return t, is && t.instead != t.to
}

// readTuple reads one direction of a connection.
func readTuple(text []byte) (p model.Protocol, from, to netip.AddrPort, is bool) {
	tuple := attributes(text)
	ip, proto := attributes(tuple[nl.CTA_TUPLE_IP]), attributes(tuple[nl.CTA_TUPLE_PROTO])
	source, is4 := netip.AddrFromSlice(ip[nl.CTA_IP_V4_SRC])
	destination, _ := netip.AddrFromSlice(ip[nl.CTA_IP_V4_DST])
	if !is4 {
		source, _ = netip.AddrFromSlice(ip[nl.CTA_IP_V6_SRC])
		destination, _ = netip.AddrFromSlice(ip[nl.CTA_IP_V6_DST])
	}
	number, ports := proto[nl.CTA_PROTO_NUM], [2][]byte{proto[nl.CTA_PROTO_SRC_PORT], proto[nl.CTA_PROTO_DST_PORT]}
	if !source.IsValid() || !destination.IsValid() || len(number) != 1 || len(ports[0]) != 2 || len(ports[1]) != 2 {
		return p, from, to, false // ICMP, for one
	}
	return model.Protocol(number[0]), netip.AddrPortFrom(source, binary.BigEndian.Uint16(ports[0])),
		netip.AddrPortFrom(destination, binary.BigEndian.Uint16(ports[1])), true
}

// attributes are netlink attributes by their type, without flags.
func attributes(text []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	list, err := nl.ParseRouteAttr(text)
	if err != nil {
		return nil
	}
	for _, a := range list {
		found[a.Attr.Type&nl.NLA_TYPE_MASK] = a.Value
	}
	return found
}

// probesTranslated checks that the director's health checks reach what they ask for. What this host
// makes of them goes elsewhere, and says nothing about the backend.
func (x *examination) probesTranslated() {
	probed := map[netip.AddrPort]*model.Service{}
	for i := range x.config.Services {
		s := &x.config.Services[i]
		if !s.Checked() {
			continue
		}
		for j := range s.Backends {
			b := &s.Backends[j]
			to := s.ProbeAddress(b)
			if s.ChecksVIP(b) {
				to = netip.AddrPortFrom(s.VIP, to.Port())
			}
			probed[to] = s
		}
	}
	x.translated("health checks", len(probed) > 0, func(t translation) *model.Service {
		if _, own := x.addresses[t.from]; !own {
			return nil
		}
		return probed[t.to]
	}, "leave out connections of this host in the rules of NAT that change their destination (nft list ruleset, iptables-save)",
		"are translated by this host, from %v to %v: they say nothing about its backends")
}

// socketsTranslated checks that the agent finds the sockets of connections: a packet of one that it
// does not find goes on to another host, which resets the connection. The first packet of a
// connection stays, and so health checks succeed.
func (x *examination) socketsTranslated(services []model.Service, uplinks []netlink.Link) {
	if x.config.Agent.SocketsElsewhere {
		return
	}
	services = slices.DeleteFunc(slices.Clone(services), func(s model.Service) bool {
		return s.Backends[0].ModeIn(s) != model.GUE || s.Protocol != model.TCP
	})
	asked, remote := map[int]int{}, map[int]bool{} // how many clients of a service were looked at, and whether one is on no link of guests
	x.translated("sockets", len(services) > 0, func(t translation) *model.Service {
		if _, own := x.addresses[t.from]; own || t.protocol != model.TCP {
			return nil
		}
		at := slices.IndexFunc(services, func(s model.Service) bool { return s.VIP == t.to.Addr() && s.Port.Contains(t.to.Port()) })
		if at < 0 || !remote[at] && asked[at] == mostAsked {
			return nil
		}
		if !remote[at] {
			asked[at]++
			if remote[at] = !x.isGuest(t.from, uplinks); !remote[at] {
				return nil
			}
		}
		return &services[at]
	}, "agent.sockets-elsewhere: true; or let the server listen on the VIP, and remove the rule of NAT (a published port of a container is one)",
		"are not found by the agent: this host translates connections from %v to %v, so it sends packets of open connections on to other hosts, which reset them")
}

// mostAsked bounds how often the kernel is asked for routes to the clients of one service.
const mostAsked = 16

// isGuest reports whether an address is on a link of this host's own, such as that of its pods or
// containers: their connections do not come from directors.
func (x *examination) isGuest(a netip.Addr, uplinks []netlink.Link) bool {
	way, problem := x.way(a)
	if problem != "" || way.local || way.gateway.IsValid() {
		return false
	}
	return !slices.ContainsFunc(uplinks, func(l netlink.Link) bool { return l.Attrs().Index == way.link.Attrs().Index })
}

// mostTranslated is of how many services it is said that their connections are translated: one rule
// may be for all.
const mostTranslated = 20

// translated fails for each service of which a connection is translated. It asks only if there may
// be one. Of several connections it names always the same, because another text is another problem.
func (x *examination) translated(check string, may bool, of func(translation) *model.Service, fix, format string) {
	if !may {
		return
	}
	found := map[string]translation{}
	err := translations(func(t translation) bool {
		if s := of(t); s != nil {
			if first, has := found[s.Name]; !has || t.compare(first) < 0 {
				found[s.Name] = t
			}
		}
		return x.ctx.Err() == nil
	})
	for i, name := range sortedKeys(found) {
		if i < mostTranslated {
			x.fail(check+" of "+name, fix, format, found[name].to, found[name].instead)
		}
	}
	switch {
	case len(found) > 0:
	case err != nil:
		x.warn(check, "", "the kernel cannot be asked which connections this host translates: %v", err)
	default:
		x.ok(check, "this host translates none of them now")
	}
}

func (t translation) compare(o translation) int {
	return cmp.Or(t.to.Compare(o.to), t.instead.Compare(o.instead))
}
