package bgp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// openPatience is how long the neighbor may take to send its OPEN.
const openPatience = 30 * time.Second

// families are gobgp's names of weir's families.
var families = map[model.BGPFamily]gobgp.Family{model.BGPIPv4: gobgp.RF_IPv4_UC, model.BGPIPv6: gobgp.RF_IPv6_UC, model.BGPEVPN: gobgp.RF_EVPN}

// addressFamilies are the families as routers are configured.
var addressFamilies = map[model.BGPFamily]string{model.BGPIPv4: "ipv4 unicast", model.BGPIPv6: "ipv6 unicast", model.BGPEVPN: "l2vpn evpn"}

// peer is what both sides have agreed on.
type peer struct {
	routerID  netip.Addr
	hold      time.Duration
	families  []model.BGPFamily
	old       bool // it knows only AS numbers of 16 bits (RFC 6793)
	nextHop6  bool // IPv4 routes may have an IPv6 next hop
	restarts  bool // it keeps routes while the session is lost
	hardReset bool // it keeps them after a NOTIFICATION too, except a hard reset (RFC 8538)
	refreshes bool // it can be asked to tell its routes again (RFC 2918)
	missing   string
	lacksEVPN string // why evpn is not among the families

	// What it has said of its own restarts (RFC 4724 3): for how long its EVPN routes are to be kept, 0:
	// not at all, and whether it still has those that it told before.
	evpnKept    time.Duration
	evpnResumes bool
}

// keepsAfter returns for how long the neighbor's EVPN routes are kept after the end of a session. One that
// is ended by a NOTIFICATION is no restart, unless both sides have said so (RFC 8538).
func (p *peer) keepsAfter(err error) time.Duration {
	var f *fault
	if !p.restarts || errors.As(err, &f) && (!p.hardReset || f.hard || f.subcode == gobgp.BGP_ERROR_SUB_HARD_RESET && f.code == gobgp.BGP_ERROR_CEASE) {
		return 0
	}
	return p.evpnKept
}

// open begins a session: both sides identify themselves, say what they support, and agree.
func open(ctx context.Context, c *connection, w *want, restarted bool) (*peer, error) {
	stop := c.interrupt(ctx)
	defer stop()
	hello, err := openMessage(w, restarted)
	if err != nil {
		return nil, err
	}
	if err := c.write(openPatience, hello); err != nil {
		return nil, err
	}
	m, err := c.read(time.Now().Add(openPatience))
	if err != nil {
		return nil, unlessEnded(ctx, err)
	}
	p, err := agree(w, m)
	if err != nil {
		return nil, err
	}
	if err := c.write(openPatience, gobgp.NewBGPKeepAliveMessage()); err != nil {
		return nil, err
	}
	if m, err = c.read(time.Now().Add(p.hold)); err != nil {
		return nil, unlessEnded(ctx, err)
	}
	if m.kind != gobgp.BGP_MSG_KEEPALIVE {
		return nil, newFault(gobgp.BGP_ERROR_FSM_ERROR, 2, "it sends a message of type %d before it has agreed to the session", m.kind)
	}
	return p, nil
}

// unlessEnded returns the error, or why the context has ended if that caused it.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// openMessage identifies this speaker. A new process says that it has restarted, so that the
// neighbor does not wait for it. It always says that forwarding went on: sessions are opened
// when the datapath does what is announced, and the datapath does not need the process.
func openMessage(w *want, restarted bool) (*gobgp.BGPMessage, error) {
	n := &w.neighbor
	capabilities := []gobgp.ParameterCapabilityInterface{gobgp.NewCapRouteRefresh()}
	var keeps []*gobgp.CapGracefulRestartTuple
	for _, f := range n.Families {
		capabilities = append(capabilities, gobgp.NewCapMultiProtocol(families[f]))
		keeps = append(keeps, gobgp.NewCapGracefulRestartTuple(families[f], true))
	}
	if wantsNextHop6(n) {
		capabilities = append(capabilities, gobgp.NewCapExtendedNexthop(
			[]*gobgp.CapExtendedNexthopTuple{gobgp.NewCapExtendedNexthopTuple(gobgp.RF_IPv4_UC, gobgp.AFI_IP6)}))
	}
	if n.Restarts() {
		capabilities = append(capabilities, gobgp.NewCapGracefulRestart(restarted, n.KeepWhenSilent,
			uint16(time.Duration(n.RestartTime)/time.Second), keeps))
	}
	capabilities = append(capabilities, gobgp.NewCapFourOctetASNumber(w.asn))
	m, err := gobgp.NewBGPOpenMessage(as16(w.asn), uint16(time.Duration(n.HoldTime)/time.Second), w.routerID,
		[]gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(capabilities)})
	if err != nil {
		return nil, fmt.Errorf("write a BGP OPEN: %w", err)
	}
	return m, nil
}

// as16 returns an AS number as speakers with 16-bit numbers know it (RFC 6793).
func as16(asn uint32) uint16 {
	if asn > math.MaxUint16 {
		return gobgp.AS_TRANS
	}
	return uint16(asn)
}

// wantsNextHop6 reports whether IPv4 routes are advertised over IPv6 without an IPv4 next hop.
func wantsNextHop6(n *model.BGPNeighbor) bool {
	has4 := slices.ContainsFunc(n.NextHop, netip.Addr.Is4)
	return n.Address.Is6() && slices.Contains(n.Families, model.BGPIPv4) && !has4
}

// agree reads the neighbor's OPEN.
func agree(w *want, m message) (*peer, error) {
	if m.kind != gobgp.BGP_MSG_OPEN {
		return nil, newFault(gobgp.BGP_ERROR_FSM_ERROR, 1, "it begins with a message of type %d", m.kind)
	}
	hello, err := parseOpen(m)
	if err != nil {
		return nil, err
	}
	theirs := newAbilities(hello)
	old := theirs.asn == 0
	if old {
		theirs.asn = uint32(hello.MyAS)
	}
	if old && w.neighbor.ASN > math.MaxUint16 {
		return nil, newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_BAD_PEER_AS,
			"it is of AS %d and does not know AS numbers of 32 bits (RFC 6793), and the configuration says %d", theirs.asn, w.neighbor.ASN)
	}
	if theirs.asn != w.neighbor.ASN {
		return nil, newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_BAD_PEER_AS,
			"it is of AS %d, and the configuration says %d", theirs.asn, w.neighbor.ASN)
	}
	if _, err := gobgp.ValidateOpenMsg(hello, w.neighbor.ASN, w.asn, w.routerID); err != nil {
		return nil, faultOf(err)
	}
	if hello.HoldTime == 0 {
		return nil, newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME,
			"it wants a session without a hold time, whose loss nobody would see")
	}
	p := &peer{routerID: hello.ID, old: old, nextHop6: theirs.nextHop6, refreshes: theirs.refreshes,
		evpnKept: theirs.evpnKept, evpnResumes: theirs.evpnResumes}
	p.hold = min(time.Duration(w.neighbor.HoldTime), time.Duration(hello.HoldTime)*time.Second)
	p.restarts = theirs.restarts && w.neighbor.Restarts()
	p.hardReset = p.restarts && w.neighbor.KeepWhenSilent && theirs.hardReset
	p.agreeFamilies(w, theirs)
	if len(p.families) == 0 {
		return nil, newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, gobgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY, "%s", p.missing)
	}
	return p, nil
}

// agreeFamilies keeps the families that both sides know and that have a next hop.
func (p *peer) agreeFamilies(w *want, theirs abilities) {
	n := &w.neighbor
	for _, f := range n.Families {
		switch {
		case !theirs.families[families[f]]:
			p.missing = fmt.Sprintf("it does not take %s routes: it has to be told to (address family %s)", f, addressFamilies[f])
			if f == model.BGPEVPN {
				p.lacksEVPN = p.missing
			}
		case f == model.BGPIPv4 && wantsNextHop6(n) && !p.nextHop6:
			p.missing = "it does not take IPv4 routes with an IPv6 next hop (RFC 8950): it has to be told to, or needs an IPv4 next-hop"
		default:
			p.families = append(p.families, f)
		}
	}
	switch {
	case p.missing != "":
	case n.Restarts() && !p.restarts:
		p.missing = "it does not know graceful restart: it forgets the routes when this director's process ends"
	case n.KeepWhenSilent && !theirs.hardReset:
		p.missing = "it does not keep the routes of a silent director (RFC 8538)"
	}
}

// abilities are the capabilities in an OPEN.
type abilities struct {
	asn       uint32
	families  map[gobgp.Family]bool
	nextHop6  bool
	restarts  bool
	hardReset bool
	refreshes bool

	evpnKept    time.Duration
	evpnResumes bool
}

func newAbilities(hello *gobgp.BGPOpen) abilities {
	a := abilities{families: map[gobgp.Family]bool{}}
	for _, parameter := range hello.OptParams {
		capabilities, is := parameter.(*gobgp.OptionParameterCapability)
		if !is {
			continue
		}
		for _, capability := range capabilities.Capability {
			a.note(capability)
		}
	}
	if len(a.families) == 0 {
		a.families[gobgp.RF_IPv4_UC] = true // BGP's family without the capability
	}
	return a
}

func (a *abilities) note(capability gobgp.ParameterCapabilityInterface) {
	switch c := capability.(type) {
	case *gobgp.CapFourOctetASNumber:
		a.asn = c.CapValue
	case *gobgp.CapMultiProtocol:
		a.families[c.CapValue] = true
	case *gobgp.CapExtendedNexthop:
		for _, t := range c.Tuples {
			a.nextHop6 = a.nextHop6 || t.NLRIAFI == gobgp.AFI_IP && t.NLRISAFI == gobgp.SAFI_UNICAST && t.NexthopAFI == gobgp.AFI_IP6
		}
	case *gobgp.CapRouteRefresh:
		a.refreshes = true
	case *gobgp.CapGracefulRestart:
		a.restarts, a.hardReset = true, c.Flags&0x04 != 0
		for _, t := range c.Tuples {
			if gobgp.NewFamily(t.AFI, t.SAFI) == gobgp.RF_EVPN {
				a.evpnKept, a.evpnResumes = time.Duration(c.Time)*time.Second, t.Flags&0x80 != 0
			}
		}
	}
}

// parseOpen reads an OPEN. A neighbor may send anything: a panic of the parser must not end the
// director.
func parseOpen(m message) (hello *gobgp.BGPOpen, err error) {
	malformed := newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, 0, "its OPEN message is malformed")
	defer func() {
		if recover() != nil {
			hello, err = nil, malformed
		}
	}()
	parsed, err := gobgp.ParseBGPBody(&gobgp.BGPHeader{Type: m.kind, Len: uint16(gobgp.BGP_HEADER_LENGTH + len(m.body))}, m.body)
	if err != nil {
		return nil, faultOf(err)
	}
	hello, is := parsed.Body.(*gobgp.BGPOpen)
	if !is {
		return nil, malformed
	}
	return hello, nil
}

// faultOf returns gobgp's objection to an OPEN.
func faultOf(err error) *fault {
	f := newFault(gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR, 0, "its OPEN message is malformed: %v", err)
	var found *gobgp.MessageError
	if errors.As(err, &found) {
		f.code, f.subcode, f.data = found.TypeCode, found.SubTypeCode, found.Data
	}
	return f
}
