package model

import (
	"net/netip"
	"time"
)

// BGPStatus is what is announced to which neighbors.
type BGPStatus struct {
	ASN       uint32              `json:"asn,omitempty"` // 0: there is no bgp in the configuration
	RouterID  netip.Addr          `json:"router-id"`
	Draining  bool                `json:"draining"` // routes are marked or withdrawn, because the director ends
	Listen    []BGPListenerStatus `json:"listen,omitempty"`
	Neighbors []BGPNeighborStatus `json:"neighbors"`
	Routes    []RouteStatus       `json:"routes"` // that neighbors of their families are told
}

// BGPListenerStatus is an address that passive neighbors connect to.
type BGPListenerStatus struct {
	Address netip.Addr `json:"address"`
	Problem string     `json:"problem,omitempty"` // why neighbors, or some of them, cannot connect
}

// SessionState is the state of a session with a neighbor.
type SessionState string

// The states of a session.
const (
	SessionConnecting  SessionState = "connecting"  // no connection
	SessionOpening     SessionState = "opening"     // connected; both sides send OPEN messages
	SessionEstablished SessionState = "established" // routes are told
)

// BGPNeighborStatus is the session with one neighbor.
type BGPNeighborStatus struct {
	Address         netip.Addr   `json:"address"`             // zero: it is not known yet which router is on the interface
	Interface       string       `json:"interface,omitempty"` // by which it is known
	ASN             uint32       `json:"asn"`
	State           SessionState `json:"state"`
	Since           time.Time    `json:"since"`              // of the state
	RouterID        netip.Addr   `json:"router-id"`          // the neighbor's, while established
	Local           netip.Addr   `json:"local"`              // this end of the session
	HoldTime        Duration     `json:"hold-time,omitzero"` // that both ends agreed on
	Families        []BGPFamily  `json:"families"`           // that both ends support
	GracefulRestart bool         `json:"graceful-restart"`   // the neighbor keeps routes for restart-time
	Announced       int          `json:"announced"`          // routes that it has been told
	BFD             string       `json:"bfd,omitempty"`      // state of the BFD session; empty: none is asked for
	Losses          uint64       `json:"losses"`             // sessions that ended since the director started
	Problem         string       `json:"problem,omitempty"`  // why there is no session, or what it lacks
	Own             bool         `json:"own,omitempty"`      // the problem is on this host, such as a password that cannot be read
}

// Name is what the neighbor is called, as [BGPNeighbor.Name] says.
func (n *BGPNeighborStatus) Name() string {
	if n.Interface != "" {
		return n.Interface
	}
	return n.Address.String()
}

// RouteStatus is one route.
type RouteStatus struct {
	Prefix     netip.Prefix  `json:"prefix"`
	Attributes BGPAttributes `json:"attributes,omitzero"`
	Neighbors  int           `json:"neighbors"` // that have been told
}
