package doctor

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
)

// translation is a connection whose destination this host's NAT has changed: that of nftables,
// iptables, ip_vs with conntrack, or of containers whose ports are published.
type translation struct {
	protocol model.Protocol
	from     netip.AddrPort
	to       netip.AddrPort // that was asked for
	instead  netip.AddrPort
	probe    bool // it is a health check's
}

// compare puts health checks first.
func (t translation) compare(o translation) int {
	if t.probe != o.probe {
		if t.probe {
			return -1
		}
		return 1
	}
	return cmp.Or(t.to.Compare(o.to), t.instead.Compare(o.instead))
}

// Of the kernel's connection tracking (include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// nf_conntrack_common.h).
const (
	ctStatusMask = 26     // since Linux 5.18; older kernels list all connections
	ipsDstNAT    = 1 << 5 // the destination is translated
)

// How much is read of a list of connections, which may have a million.
const (
	mostConnections    = 1 << 18
	connectionPatience = time.Second // less than what a whole examination may take
)

// translations calls a function for each connection that this host translates now, until the context
// ends or that many connections were read, which is an error. Where connections are not tracked
// there are none, and the kernel is not asked, because that would load its connection tracking.
func translations(ctx context.Context, most int, take func(translation)) error {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if count, bad := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || bad != nil || count == 0 {
		return nil
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, ipsDstNAT)))
	request.AddData(nl.NewRtAttr(ctStatusMask, binary.BigEndian.AppendUint32(nil, ipsDstNAT)))
	read := 0
	return dump(ctx, request, func(message []byte) error {
		if read++; read > most {
			return fmt.Errorf("there are more than %d of them", most)
		}
		if t, is := readTranslation(message); is {
			take(t)
		}
		return nil
	})
}

// dump calls a function for each message that answers a request, until the context ends or that
// returns an error. ExecuteIter of netlink would read all the rest before it returned.
func dump(ctx context.Context, request *nl.NetlinkRequest, take func(message []byte) error) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: int64(connectionPatience / time.Second)}); err != nil {
		return err
	}
	if err := socket.Send(request); err != nil {
		return err
	}
	for {
		messages, from, err := socket.Receive()
		if err != nil {
			return err
		}
		if from.Pid != nl.PidKernel {
			continue
		}
		for i := range messages {
			m := &messages[i]
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if len(m.Data) < 4 || binary.NativeEndian.Uint32(m.Data) == 0 {
					return nil
				}
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("there was no more time: %w", err)
			}
			if err := take(m.Data); err != nil {
				return err
			}
		}
	}
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
	if t.protocol, t.from, t.to, is = readTuple(top[nl.CTA_TUPLE_ORIG]); !is {
		return t, false
	}
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
		if !s.Checked() || s.Health.Kind == model.CheckExec {
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
	if len(probed) == 0 {
		return
	}
	const check, fix = "health checks", "leave out connections of this host in the rules of NAT that change their destination (nft list ruleset, iptables-save)"
	probes := x.probes()
	x.translated(check, func(t *translation) *model.Service {
		if _, own := x.addresses[t.from.Addr()]; !own {
			return nil
		}
		t.probe = probes[[2]netip.AddrPort{t.from, t.to}]
		return probed[t.to]
	}, func(s *model.Service, t translation) {
		if t.probe {
			x.fail(check+" of "+s.Name, fix+x.suchAs(t), "are translated by this host to other addresses: they say nothing about its backends")
			return
		}
		x.warn(check+" of "+s.Name, fix, "this host translates connections of its own from %v, which is checked, to %v: if it does so with health checks, they say nothing about the backends", t.to, t.instead)
	})
}

// suchAs names a connection to a person. A running process leaves it out: the next examination may
// see another connection, and another text or fix is another problem.
func (x *examination) suchAs(t translation) string {
	if x.running {
		return ""
	}
	return fmt.Sprintf("; one leads from %v to %v", t.to, t.instead)
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
	if len(services) == 0 {
		return
	}
	const check, fix = "sockets", "agent.sockets-elsewhere: true; or let the server listen on the VIP, and remove the rule of NAT (a published port of a container is one)"
	x.translated(check, func(t *translation) *model.Service {
		if _, own := x.addresses[t.from.Addr()]; own || t.protocol != model.TCP {
			return nil
		}
		at := slices.IndexFunc(services, func(s model.Service) bool { return s.VIP == t.to.Addr() && s.Port.Contains(t.to.Port()) })
		if at < 0 || !remote[at] && asked[at] == mostAsked {
			return nil
		}
		if !remote[at] {
			asked[at]++
			if remote[at] = !x.isGuest(t.from.Addr(), uplinks); !remote[at] {
				return nil
			}
		}
		return &services[at]
	}, func(s *model.Service, t translation) {
		x.fail(check+" of "+s.Name, fix+x.suchAs(t), "are not found by the agent: this host translates connections to VIP %v, so it sends packets of open connections on to other hosts, which reset them", s.VIP)
	})
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

// translated reports the services that have a translated connection. If a service
// has several, it always reports the same connection.
func (x *examination) translated(check string, of func(*translation) *model.Service, say func(*model.Service, translation)) {
	found, services := map[string]translation{}, map[string]*model.Service{}
	ctx, cancel := context.WithTimeout(x.ctx, connectionPatience)
	defer cancel()
	err := translations(ctx, mostConnections, func(t translation) {
		if s := of(&t); s != nil {
			if first, has := found[s.Name]; !has || t.compare(first) < 0 {
				found[s.Name], services[s.Name] = t, s
			}
		}
	})
	for i, name := range slices.Sorted(maps.Keys(found)) {
		if i < mostTranslated {
			say(services[name], found[name])
		}
	}
	switch {
	case err != nil:
		x.warn(check, "", "not all connections that this host translates could be looked at: %v", err)
	case len(found) == 0:
		x.ok(check, "this host translates none of them now")
	}
}
