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

// path is what BFD says of the way to a neighbor that asks for it.
type path struct {
	neighbor netip.Addr
	state    string // of the session, in BFD's words; empty: nothing is known of it
	held     string // why this director has it down itself: what routes stand for is not there
	process  int    // that counts the losses
	losses   uint64
	lastLoss string
}

// pathOf finds the session that a neighbor asks for among those that there are.
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
		if s.Neighbor == n.Address && s.Source == source && s.Multihop == n.BFDMultihop() {
			return path{neighbor: n.Address, state: s.State, held: s.Held, process: status.PID, losses: s.Losses, lastLoss: s.LastLoss}
		}
	}
	return path{}
}

// lost returns what ends a session, if the way was lost since the one before was known, or
// may not be used any more. A session that BFD has not yet seen up is not ended: the
// neighbor may not speak BFD.
func (p path) lost(before path) error {
	switch {
	case p.neighbor == before.neighbor && p.process != 0 && p.process == before.process && p.losses > before.losses:
		return unreachable{p.lastLoss}
	case p.held != "" && before.held == "":
		return unreachable{p.held}
	}
	return nil
}

// unreachable is why a session ends that BFD has ended.
type unreachable struct{ diagnostic string }

// Error says what BFD says.
func (u unreachable) Error() string { return fmt.Sprintf("BFD finds the way lost: %s", u.diagnostic) }

// endedByBFD reports whether a session has ended because BFD finds the way lost, here or at
// the neighbor. FRR's bgpd takes a neighbor that it knows by a range of addresses out of
// bfdd then, and when the next session comes before that is done, bfdd stays silent for as
// long as that session lasts.
func endedByBFD(err error) bool {
	if errors.As(err, new(unreachable)) {
		return true
	}
	var f *fault
	return errors.As(err, &f) && f.received && f.code == gobgp.BGP_ERROR_CEASE && f.subcode == subcodeBFDDown
}

// SetBFD takes what the process says that speaks BFD; the zero status: it says nothing. A
// session whose way is lost is ended at once, and opened again after a pause; one
// whose routes stand for a datapath that is not there is not opened until it is.
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

// unknown returns what holds while nobody says anything: what was not there is still not, as
// far as anybody knows.
func unknown(before model.BFDStatus) (status model.BFDStatus) {
	for _, s := range before.Sessions {
		s.State = ""
		status.Sessions = append(status.Sessions, s)
	}
	return status
}
