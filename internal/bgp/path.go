package bgp

import (
	"errors"
	"fmt"
	"net/netip"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/internal/model"
)

// subcodeBFDDown is the subcode of Cease that says that BFD finds the way lost (RFC 9384).
const subcodeBFDDown = 10

// path is what BFD says about the way to a neighbor that asks for BFD.
type path struct {
	neighbor netip.Addr
	vrf      string
	state    string // of the session, in BFD's words; empty: the state is not known
	held     string // why this director itself keeps it down: the datapath behind the routes is not there
	process  int    // the process that counts the losses
	losses   uint64
	lastLoss string
}

// pathOf finds the session that a neighbor asks for among the existing ones.
func pathOf(n *model.BGPNeighbor, status *model.BFDStatus) path {
	if n.BFD == nil {
		return path{}
	}
	source := netip.Addr{}
	if n.Source != nil {
		source = *n.Source
	}
	for i := range status.Sessions {
		s := &status.Sessions[i]
		if s.Neighbor == n.Address && s.VRF == n.VRF && s.Source == source && s.Multihop == n.BFDMultihop() {
			return path{neighbor: n.Address, vrf: n.VRF, state: s.State, held: s.Held, process: status.PID, losses: s.Losses, lastLoss: s.LastLoss}
		}
	}
	return path{}
}

// lost returns why to end a session, if the way was lost since the earlier path was known, or may
// no longer be used. A session that BFD has not yet seen up is not ended: the neighbor may not
// speak BFD.
func (p path) lost(before path) error {
	switch {
	case p.neighbor == before.neighbor && p.vrf == before.vrf && p.process != 0 && p.process == before.process && p.losses > before.losses:
		return unreachable{p.lastLoss}
	case p.held != "" && before.held == "":
		return unreachable{p.held}
	}
	return nil
}

// unreachable is why BFD has ended a session.
type unreachable struct{ diagnostic string }

// Error says what BFD says.
func (u unreachable) Error() string { return fmt.Sprintf("BFD finds the way lost: %s", u.diagnostic) }

// endedByBFD reports whether a session has ended because BFD finds the way lost, here or at the
// neighbor. FRR's bgpd then removes a neighbor that it knows by a range of addresses from bfdd; if
// the next session comes before that is done, bfdd stays silent for as long as that session lasts.
func endedByBFD(err error) bool {
	if errors.As(err, new(unreachable)) {
		return true
	}
	var f *fault
	return errors.As(err, &f) && f.received && f.code == gobgp.BGP_ERROR_CEASE && f.subcode == subcodeBFDDown
}

// SetBFD takes what the BFD process says; the zero status: it says nothing. A session whose way is
// lost is ended at once, and opened again after a pause; a session for a datapath that is not there
// is not opened until the datapath is there.
func (s *Speaker) SetBFD(status model.BFDStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	before := s.bfd
	if status.PID == 0 {
		status = unknown(before)
	}
	s.bfd = status
	for i := range s.config.Neighbors {
		n := &s.config.Neighbors[i]
		at := s.resolved(n)
		if one := s.sessions[n.Name()]; one != nil && pathOf(&at, &before) != pathOf(&at, &status) {
			one.set(s.want(n))
		}
	}
}

// unknown returns the status while the process says nothing: a datapath that was not there is
// assumed to be still missing.
func unknown(before model.BFDStatus) (status model.BFDStatus) {
	for _, s := range before.Sessions {
		s.State = ""
		status.Sessions = append(status.Sessions, s)
	}
	return status
}
