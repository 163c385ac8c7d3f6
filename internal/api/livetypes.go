package api

import (
	"net/netip"
	"time"

	"weir.io/weir/internal/model"
)

// LiveMessage is what a director does now: a message of GET /v1/live.
type LiveMessage struct {
	Whole     bool `json:"whole,omitempty" doc:"this is all that there is. Other messages leave out what is as it was in the one before"`
	LivePoint `json:",inline"`
	History   []LivePoint         `json:"history,omitempty" doc:"in the first message: earlier moments, the oldest first, in which somebody listened"`
	Flows     LiveFlows           `json:"flows"`
	CPUs      []model.CPUStatus   `json:"cpus"`
	Director  *LiveDirector       `json:"director,omitempty"`
	Group     *LiveGroup          `json:"group,omitempty"`
	BGP       *LiveBGP            `json:"bgp,omitempty"`
	Reasons   []LiveReason        `json:"reasons,omitempty" doc:"of which there are packets"`
	Services  []LiveService       `json:"services,omitempty"`
	Rates     map[string]LiveRate `json:"rates,omitempty" doc:"of services, by their names"`
	Gone      []string            `json:"gone,omitempty" doc:"services that there are no more"`
	Troubled  *LiveTroubled       `json:"troubled,omitempty"`
	Detail    *LiveDetail         `json:"detail,omitempty" doc:"of the service that is asked for"`
	Events    []Event             `json:"events,omitempty"`
}

// LivePoint is a moment of all services together.
type LivePoint struct {
	Time    time.Time          `json:"time"`
	Seconds float64            `json:"seconds" doc:"that rates are taken over; 0: there are none yet"`
	Total   LiveRate           `json:"total"`
	Drops   map[string]float64 `json:"drops,omitempty" doc:"packets in a second that were dropped, by the reason; those of none are left out"`
}

// LiveRate is what came per second.
type LiveRate struct {
	Connections float64 `json:"connections,omitempty" doc:"of TCP, that were opened"`
	Packets     float64 `json:"packets,omitempty" doc:"that were forwarded"`
	Bytes       float64 `json:"bytes,omitempty" doc:"of these"`
	Dropped     float64 `json:"dropped,omitempty" doc:"packets"`
}

// LiveFlows is how full the memory of flows is.
type LiveFlows struct {
	Remembered int    `json:"remembered"`
	Most       uint32 `json:"most" doc:"for which there is room"`
	Settling   int    `json:"settling" doc:"slots whose flows may be of several backends"`
}

// LiveDirector is what the director is.
type LiveDirector struct {
	Info       `json:",inline"`
	Interfaces []model.InterfaceStatus `json:"interfaces"`
	Limits     model.Limits            `json:"limits"`
	RingMemory uint64                  `json:"ring-memory"`
	Agents     model.ReporterStatus    `json:"agents"`
	Answers    int                     `json:"answers" doc:"VIPs that it answers for by ARP and NDP"`
	Neighbor   string                  `json:"neighbor,omitempty" doc:"what is wrong with that"`
}

// LiveGroup is which directors there are.
type LiveGroup struct {
	Directors []model.DirectorRun `json:"directors"`
	Problem   string              `json:"problem,omitempty" doc:"why they are not known"`
}

// LiveBGP is which routers are told.
type LiveBGP struct {
	ASN       uint32                    `json:"asn,omitempty"`
	Draining  bool                      `json:"draining"`
	Routes    int                       `json:"routes"`
	Neighbors []model.BGPNeighborStatus `json:"neighbors"`
}

// LiveReason is how many packets ended under a reason.
type LiveReason struct {
	Name    string  `json:"name"`
	Text    string  `json:"text" doc:"what it means"`
	Packets uint64  `json:"packets" doc:"since the program runs"`
	Rate    float64 `json:"rate,omitempty" doc:"in a second"`
}

// LiveService is a service without its rates.
type LiveService struct {
	Name        string          `json:"name"`
	Segment     model.Segment   `json:"segment,omitzero"`
	VIP         netip.Addr      `json:"vip"`
	Protocol    model.Protocol  `json:"protocol"`
	Port        model.PortRange `json:"port"`
	Policy      model.Policy    `json:"policy"`
	Slots       int             `json:"slots"`
	Backends    int             `json:"backends"`
	Active      int             `json:"active" doc:"backends that get new connections"`
	Draining    int             `json:"draining,omitempty"`
	Checked     bool            `json:"checked,omitempty" doc:"its backends are probed"`
	Unhealthy   int             `json:"unhealthy,omitempty" doc:"backends that probes find down"`
	Unknown     int             `json:"unknown,omitempty" doc:"backends of which no probe has ended yet"`
	Tier        uint8           `json:"tier,omitempty" doc:"that gets new connections, because too few backends of the tiers above it are healthy"`
	Panic       bool            `json:"panic,omitempty" doc:"so few are healthy that all to which there is a way are used"`
	Generations int             `json:"generations"`
	Waits       bool            `json:"waits,omitempty" doc:"a change waits for room in the log"`
	Moved       int             `json:"moved,omitempty" doc:"slots that got another owner with the last change that moved any"`
	Starting    int             `json:"starting,omitempty" doc:"backends that do not have their whole share yet"`
}

// LiveBackend is a backend of a service without its rates.
type LiveBackend struct {
	Name      string             `json:"name"`
	Address   netip.Addr         `json:"address"`
	Segment   model.Segment      `json:"segment,omitzero" doc:"that it is in"`
	Port      uint16             `json:"port,omitempty"`
	Mode      model.Mode         `json:"mode"`
	State     model.BackendState `json:"state" doc:"in the kernel: down too while its next hop is unknown"`
	Interface string             `json:"interface,omitempty"`
	NextHop   model.MAC          `json:"next-hop"`
	Slots     int                `json:"slots"`
	Tier      uint8              `json:"tier,omitempty"`
	Health    model.HealthState  `json:"health,omitempty" doc:"what probes find; none: it is not checked"`
	Since     time.Time          `json:"since,omitzero" doc:"of that"`
	Reason    string             `json:"reason,omitempty" doc:"why the last probe failed"`
	Detail    string             `json:"detail,omitempty" doc:"the same for people"`
	Strain    uint8              `json:"strain,omitempty" doc:"eighths of its share that it keeps, because it is strained"`
	Override  *model.Override    `json:"override,omitempty" doc:"the state that somebody has given it beside the director's file"`
}

// LiveTroubled are backends that do not get what they should.
type LiveTroubled struct {
	Count    int                   `json:"count"`
	Backends []LiveTroubledBackend `json:"backends" doc:"some of them, at most 50, those of one address with the same trouble once, without a port if they have several"`
}

// LiveTroubledBackend is one backend of LiveTroubled.
type LiveTroubledBackend struct {
	Service     string `json:"service" doc:"one of those that have it"`
	Services    int    `json:"services" doc:"how many have it, with the same trouble"`
	Count       int    `json:"count" doc:"how many of their backends have this address: a service may have several ports of it"`
	last        string // the service that came last
	LiveBackend `json:",inline"`
}

// LiveDetail is a service's backends.
type LiveDetail struct {
	Service  string              `json:"service"`
	Missing  bool                `json:"missing,omitempty" doc:"there is no such service"`
	Backends []LiveBackend       `json:"backends,omitempty" doc:"all of them, where one is different"`
	Rates    map[string]LiveRate `json:"rates,omitempty" doc:"by backend"`
}
