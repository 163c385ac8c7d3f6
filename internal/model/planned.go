package model

import (
	"fmt"
	"net/netip"
)

// Rate is what a director forwards per second.
type Rate struct {
	Connections float64 `json:"connections" doc:"TCP connections that clients open: SYNs"`
	Packets     float64 `json:"packets"`
	Bytes       float64 `json:"bytes"`
}

// Plus returns the sum of this rate and a part of another one.
func (r Rate) Plus(o Rate, part float64) Rate {
	return Rate{r.Connections + part*o.Connections, r.Packets + part*o.Packets, r.Bytes + part*o.Bytes}
}

// SeenIn is the unit in which the share of traffic was counted.
type SeenIn string

// What may be counted of a service's traffic.
const (
	SeenInConnections SeenIn = "connections" // that clients have opened meanwhile
	SeenInPackets     SeenIn = "packets"     // for UDP, or because no connection was opened meanwhile
)

// PlannedService is what a change does to a service.
type PlannedService struct {
	Service string `json:"service"`
	Change  string `json:"change" enum:"added,changed,removed"`
	Slots   int    `json:"slots" doc:"after the change"`
	Moved   int    `json:"moved" doc:"slots that have another owner than before"`
	Held    int    `json:"held" doc:"slots that keep an older owner until their rows have room"`
	Waits   bool   `json:"waits,omitempty" doc:"its other membership, ring size, affinity or policy waits until older generations have left its log"`
	// Traffic is the share of the counted traffic that would go to other backends after the
	// change: open connections stay where they are.
	Traffic *float64 `json:"traffic,omitempty" doc:"share, 0 to 1, of the traffic that was counted whose like will go to other backends; none: nothing was counted"`
	Of      SeenIn   `json:"traffic-of,omitempty" enum:"connections,packets" doc:"what that is a share of"`
	Seen    *Rate    `json:"seen,omitempty" doc:"what was counted, in a second"`
	Moves   *Rate    `json:"moves,omitempty" doc:"what of that is to go to other backends"`
	// Open is the share of open connections that are in slots that move, by agents' reports.
	Open     *float64         `json:"open,omitempty" doc:"share, 0 to 1, of the open connections that agents report which are in slots that move; none: some agent does not report"`
	Backends []PlannedBackend `json:"backends"`
	Risks    []Risk           `json:"risks"`
	// KeysGo says that the change removes keys that clients cannot read: a client that has read
	// the earlier service cannot put it again.
	KeysGo bool `json:"keys-go,omitempty" doc:"keys of quic go that nobody can read: what the service was before cannot be put again without them"`
}

// PlannedBackend is what a change does to a backend. A backend with the same address and port is
// the same one.
type PlannedBackend struct {
	Name    string       `json:"name"`
	Address netip.Addr   `json:"address"`
	Port    uint16       `json:"port,omitempty"`
	Before  *PlannedLoad `json:"before,omitempty" doc:"none: it is added"`
	After   *PlannedLoad `json:"after,omitempty" doc:"none: it is removed"`
	Down    bool         `json:"down,omitempty" doc:"probes fail: its slots' new connections go to others, before and after"`
	Open    *uint64      `json:"open,omitempty" doc:"connections that its agent reports, estimated from how many ranges of hashes they are in"`
}

// PlannedLoad is a backend's part of a service.
type PlannedLoad struct {
	State BackendState `json:"state"`
	Slots int          `json:"slots" doc:"that it owns"`
	Share float64      `json:"share" doc:"of the service's new connections, 0 to 1: with the slots of backends that are down for which it stands in"`
	Rate  *Rate        `json:"rate,omitempty" doc:"before: what was counted; after: what it would have been. None: nothing was counted"`
}

// PlannedLimit is how much of one of this director's limits a change takes.
type PlannedLimit struct {
	Limit    string `json:"limit" enum:"services,backends,ring-memory,source-ranges"`
	Before   uint64 `json:"before"`
	After    uint64 `json:"after"`
	Peak     uint64 `json:"peak" doc:"while it is made: rings are written beside those that they replace"`
	Most     uint64 `json:"most"`
	Exceeded bool   `json:"exceeded" doc:"it would be stored, and not applied"`
}

// Risk is a reason why connections may end, and which ones.
type Risk struct {
	Reason   RiskReason `json:"reason" enum:"service-removed,backend-removed,backend-down,translation,asks,tunnel,leaves-gue,affinity,no-agents,memory-alone,tiers,full-nat,no-notice,max-retention,quic,source-ranges,kernel-sources"`
	When     RiskWhen   `json:"when" enum:"at-once,if-idle,if-directors-change,if-a-director-is-late,if-not-ready,if-long" doc:"what has to happen for them to end"`
	Text     string     `json:"text" doc:"the reason, for people"`
	Backends []string   `json:"backends,omitempty" doc:"names of those whose connections they are; none: of any"`
	// Connections is how many are known; nil: their number is not known.
	Connections *uint64   `json:"connections,omitempty" doc:"how many are known to be at risk; none: nobody knows"`
	CountedBy   CountedBy `json:"counted-by,omitempty" enum:"agents,memory" doc:"who knows them"`
}

// CountedBy is the source of the number of connections.
type CountedBy string

// The sources of the number of connections.
const (
	CountedByAgents CountedBy = "agents" // an estimate, from agents' reports of their sockets
	CountedByMemory CountedBy = "memory" // flows that the director remembers: there may be more
)

// RiskWhen is what has to happen for connections at risk to end.
type RiskWhen string

// The occasions on which they end.
const (
	WhenApplied   RiskWhen = "at-once"               // with the change itself
	WhenIdle      RiskWhen = "if-idle"               // when they send nothing for longer than drain
	WhenDirectors RiskWhen = "if-directors-change"   // when a director comes or goes before they have ended
	WhenLate      RiskWhen = "if-a-director-is-late" // when another director learns of the change later than this one
	WhenUnready   RiskWhen = "if-not-ready"          // when the backend is not set up for it yet
	WhenOld       RiskWhen = "if-long"               // when they live longer than the log remembers
)

// RiskReason is why connections are at risk.
type RiskReason string

// The reasons: see docs/operate/plan.md.
const (
	RiskServiceRemoved RiskReason = "service-removed"
	RiskBackendRemoved RiskReason = "backend-removed"
	RiskBackendDown    RiskReason = "backend-down"
	RiskTranslation    RiskReason = "translation"
	RiskAsks           RiskReason = "asks"
	RiskTunnel         RiskReason = "tunnel"
	RiskLeavesGUE      RiskReason = "leaves-gue"
	RiskAffinity       RiskReason = "affinity"
	RiskNoAgents       RiskReason = "no-agents"
	RiskMemoryAlone    RiskReason = "memory-alone"
	RiskTiers          RiskReason = "tiers"
	RiskFullNAT        RiskReason = "full-nat"
	RiskNoNotice       RiskReason = "no-notice"
	RiskMaxRetention   RiskReason = "max-retention"
	RiskQUIC           RiskReason = "quic"
	RiskSourceRanges   RiskReason = "source-ranges"
	RiskKernelSources  RiskReason = "kernel-sources"
)

// Move is what a change does to the slots of a service.
type Move struct {
	Service string `json:"service"` // name
	Slots   int    `json:"slots"`
	Moved   int    `json:"moved"` // have another owner than before
	Held    int    `json:"held"`  // keep an older owner until their rows have room
}

// Share is how much of a service has moved, in percent.
func (m Move) Share() string {
	if m.Slots == 0 {
		return "0.0%"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(m.Moved)/float64(m.Slots))
}
