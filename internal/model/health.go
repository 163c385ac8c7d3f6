package model

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// HealthCheck says how each director finds out which of a service's backends are healthy.
type HealthCheck struct {
	Kind     CheckKind `json:"kind"`
	Interval Duration  `json:"interval,omitzero"` // from one probe of a backend to the next
	Jitter   Duration  `json:"jitter,omitzero"`   // how much longer or shorter an interval may be
	Timeout  Duration  `json:"timeout,omitzero"`  // of one probe, from its first packet to its last
	Rise     uint16    `json:"rise,omitempty"`    // successes in a row that make a backend healthy
	Fall     uint16    `json:"fall,omitempty"`    // failures in a row that make it unhealthy
	Panic    *uint8    `json:"panic,omitempty"`   // percent: with fewer healthy backends, all backends are used; 0: never
	// SlowStart is how long a backend takes to reach its whole share after it came or was down; 0:
	// it has its share at once.
	SlowStart Duration    `json:"slow-start,omitzero"`
	Passive   *Passive    `json:"passive,omitempty"` // nil: agents' reports change no share
	Port      uint16      `json:"port,omitempty"`    // that is probed; 0: the one that the backend serves
	To        CheckTo     `json:"to,omitempty"`      // what is probed; empty: the VIP where that is possible
	HTTP      *HealthHTTP `json:"http,omitempty"`    // kinds http and https
	TLS       *HealthTLS  `json:"tls,omitempty"`     // kinds https, tls and grpc
	GRPC      *HealthGRPC `json:"grpc,omitempty"`    // kind grpc
	UDP       *HealthUDP  `json:"udp,omitempty"`     // kind udp
	DNS       *HealthDNS  `json:"dns,omitempty"`     // kind dns
}

// HealthHTTP is a request, and the answers that are good.
type HealthHTTP struct {
	Method string        `json:"method,omitempty"`
	Path   string        `json:"path,omitempty"`
	Host   string        `json:"host,omitempty"`   // empty: the backend's address and port
	Status []StatusRange `json:"status,omitempty"` // that are good
	Body   string        `json:"body,omitempty"`   // text that a good answer's body has in its first 64 KiB
}

// HealthTLS is what a server's certificate must have.
type HealthTLS struct {
	Name       string `json:"name,omitempty"`        // asked for (SNI) and looked for in the certificate
	CA         string `json:"ca,omitempty"`          // PEM: CAs that may have signed it; empty: as the system trusts
	SkipVerify bool   `json:"skip-verify,omitempty"` // any certificate will do
}

// HealthGRPC is what is asked of a server's grpc.health.v1.Health.
type HealthGRPC struct {
	Service string `json:"service,omitempty"` // empty: the server as a whole
}

// HealthUDP is a datagram, and the answer to it.
type HealthUDP struct {
	Send   Payload `json:"send,omitzero"`   // zero: an empty datagram
	Expect Payload `json:"expect,omitzero"` // that the answer contains; zero: it need not answer
}

// HealthDNS is a query, and the answers that are good.
type HealthDNS struct {
	Name   string    `json:"name"`
	Type   DNSType   `json:"type,omitzero"`
	RCodes []DNSCode `json:"rcodes,omitempty"` // that are good
}

// CheckKind is how backends are checked.
type CheckKind string

// The kinds of health checks.
const (
	CheckNone  CheckKind = "none"  // they are not checked
	CheckTCP   CheckKind = "tcp"   // a connection is made, and ended
	CheckSYN   CheckKind = "syn"   // a SYN is answered by a SYN-ACK; no connection is made
	CheckHTTP  CheckKind = "http"  // a request is answered well
	CheckHTTPS CheckKind = "https" // the same over TLS
	CheckTLS   CheckKind = "tls"   // a TLS handshake is made
	CheckGRPC  CheckKind = "grpc"  // the gRPC health protocol says SERVING
	CheckUDP   CheckKind = "udp"   // a datagram is not refused
	CheckDNS   CheckKind = "dns"   // a query is answered
	CheckICMP  CheckKind = "icmp"  // an echo request is answered

	// CheckRedirect asks whether connections can be handed over to a backend. Configuration files
	// cannot have it.
	CheckRedirect CheckKind = "redirect"
)

var checkKindNames = names[CheckKind]{kind: "kind", list: []name[CheckKind]{
	{CheckNone, "none"}, {CheckTCP, "tcp"}, {CheckSYN, "syn"}, {CheckHTTP, "http"}, {CheckHTTPS, "https"},
	{CheckTLS, "tls"}, {CheckGRPC, "grpc"}, {CheckUDP, "udp"}, {CheckDNS, "dns"}, {CheckICMP, "icmp"}}}

// UnmarshalText reads the name; the error lists the known ones.
func (k *CheckKind) UnmarshalText(text []byte) (err error) {
	*k, err = checkKindNames.parse(text)
	return err
}

// Names returns all names.
func (CheckKind) Names() []string { return checkKindNames.texts() }

// CheckTo is which of a backend's addresses is probed.
type CheckTo string

// What can be probed.
const (
	CheckVIP     CheckTo = "vip"     // the service's, by the way of its packets: see Service.ChecksVIP
	CheckAddress CheckTo = "address" // the backend's own, by the host's routes
)

var checkToNames = names[CheckTo]{kind: "target of checks", list: []name[CheckTo]{{CheckVIP, "vip"}, {CheckAddress, "address"}}}

// UnmarshalText reads the name; the error lists the known ones.
func (t *CheckTo) UnmarshalText(text []byte) (err error) {
	*t, err = checkToNames.parse(text)
	return err
}

// Names returns all names.
func (CheckTo) Names() []string { return checkToNames.texts() }

// StatusRange is one or more HTTP status codes. It is written as 200 or 200-299.
type StatusRange struct{ First, Last uint16 }

// Contains reports whether the code is one of them.
func (r StatusRange) Contains(code int) bool { return int(r.First) <= code && code <= int(r.Last) }

// String returns "200" or "200-299".
func (r StatusRange) String() string { return PortRange(r).String() }

// MarshalText writes what String returns.
func (r StatusRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what String returns.
func (r *StatusRange) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	f, err := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || f < 100 || l > 599 || l < f {
		return fmt.Errorf("%q is neither an HTTP status code (200) nor a range of them (200-299)", text)
	}
	*r = StatusRange{uint16(f), uint16(l)}
	return nil
}

// Payload is the bytes of a datagram, written as text, or as hex: and hexadecimal digits.
type Payload string

const payloadHex = "hex:"

// String returns the text, or the digits where it cannot be printed.
func (p Payload) String() string {
	printable := utf8.ValidString(string(p)) && !strings.ContainsFunc(string(p), func(r rune) bool { return !unicode.IsPrint(r) })
	if printable && !strings.HasPrefix(string(p), payloadHex) {
		return string(p)
	}
	return payloadHex + hex.EncodeToString([]byte(p))
}

// MarshalText writes what String returns.
func (p Payload) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what String returns.
func (p *Payload) UnmarshalText(text []byte) error {
	digits, isHex := strings.CutPrefix(string(text), payloadHex)
	if !isHex {
		*p = Payload(text)
		return nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return fmt.Errorf("%q is not hex: and pairs of hexadecimal digits", text)
	}
	*p = Payload(b)
	return nil
}

// DNSType is a type of DNS records, by its number (IANA). The zero value is none.
type DNSType uint16

// DNSCode is the response code of a DNS answer (RFC 1035, section 4.1.1).
type DNSCode uint8

var (
	dnsTypeNames = names[DNSType]{kind: "record type", list: []name[DNSType]{
		{1, "A"}, {2, "NS"}, {5, "CNAME"}, {6, "SOA"}, {12, "PTR"}, {15, "MX"}, {16, "TXT"}, {28, "AAAA"}, {33, "SRV"}}}
	dnsCodeNames = names[DNSCode]{kind: "response code", list: []name[DNSCode]{
		{0, "noerror"}, {1, "formerr"}, {2, "servfail"}, {3, "nxdomain"}, {4, "notimp"}, {5, "refused"}}}
)

// String returns the name that zone files use.
func (t DNSType) String() string { return dnsTypeNames.text(t) }

// MarshalText writes the name that zone files use.
func (t DNSType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (t *DNSType) UnmarshalText(text []byte) (err error) {
	*t, err = dnsTypeNames.parse(text)
	return err
}

// String returns the code's name.
func (c DNSCode) String() string { return dnsCodeNames.text(c) }

// MarshalText writes the code's name.
func (c DNSCode) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the name; the error lists the known ones.
func (c *DNSCode) UnmarshalText(text []byte) (err error) {
	*c, err = dnsCodeNames.parse(text)
	return err
}

// Checked reports whether the service's backends are checked.
func (s *Service) Checked() bool { return s.Health != nil && s.Health.Kind != CheckNone }

// ProbePort returns the port of a backend that checks are sent to, 0: none is known.
func (s *Service) ProbePort(b *Backend) uint16 {
	if s.Health.Port != 0 {
		return s.Health.Port
	}
	return b.portIn(s)
}

// ProbeAddress returns where a backend is checked.
func (s *Service) ProbeAddress(b *Backend) netip.AddrPort {
	return netip.AddrPortFrom(b.Address, s.ProbePort(b))
}

// ChecksVIP reports whether probes of a backend go to the VIP, by the way that the service's own
// packets take to it. In nat no backend has the VIP, and a packet of no service gets no further
// than an agent.
func (s *Service) ChecksVIP(b *Backend) bool {
	mode := b.ModeIn(*s)
	if b.Host.IsValid() {
		return false // the pod has its address, and knows nothing of the VIP
	}
	return s.Health.To != CheckAddress && (mode == L2DSR || mode == IPIP || mode == GUE) &&
		s.Health.protocol(s.Protocol) == s.Protocol && s.Port.Contains(s.ProbePort(b))
}

// protocol is the protocol of the probes for a service of this protocol; zero: ICMP.
func (h *HealthCheck) protocol(service Protocol) Protocol {
	switch h.Kind {
	case CheckICMP:
		return 0
	case CheckDNS:
		return service
	case CheckUDP:
		return UDP
	}
	return TCP
}

// The defaults of a check's keys.
const (
	DefaultHealthInterval = Duration(time.Second)
	DefaultHealthTimeout  = Duration(time.Second)
	DefaultHealthRise     = 2
	DefaultHealthFall     = 3
	DefaultHealthPanic    = 20
)

// withDefaults returns the check with all defaults. The check itself is not written to: other
// services may share it.
func (h HealthCheck) withDefaults() *HealthCheck {
	if h.Interval == 0 {
		h.Interval = DefaultHealthInterval
	}
	if h.Jitter == 0 {
		h.Jitter = max(h.Interval/10, 1)
	}
	if h.Timeout == 0 {
		h.Timeout = DefaultHealthTimeout
	}
	if h.Rise == 0 {
		h.Rise = DefaultHealthRise
	}
	if h.Fall == 0 {
		h.Fall = DefaultHealthFall
	}
	h.Passive = h.Passive.withDefaults()
	if h.Panic == nil {
		percent := uint8(DefaultHealthPanic)
		h.Panic = &percent
	}
	switch h.Kind {
	case CheckHTTP, CheckHTTPS:
		h.HTTP = h.HTTP.withDefaults()
	case CheckDNS:
		h.DNS = h.DNS.withDefaults()
	}
	return &h
}

func (h *HealthHTTP) withDefaults() *HealthHTTP {
	var out HealthHTTP
	if h != nil {
		out = *h
	}
	if out.Method == "" {
		out.Method = "GET"
	}
	if out.Path == "" {
		out.Path = "/"
	}
	if len(out.Status) == 0 {
		out.Status = []StatusRange{{200, 299}}
	}
	return &out
}

func (h *HealthDNS) withDefaults() *HealthDNS {
	if h == nil {
		return nil // it is required, and validation says so
	}
	out := *h
	if out.Type == 0 {
		out.Type = 1
	}
	if len(out.RCodes) == 0 {
		out.RCodes = []DNSCode{0}
	}
	return &out
}

// Target is a backend of a service, without the names of the two.
type Target struct {
	Service ServiceID
	Backend netip.AddrPort
	// Redirect says that the question is not whether the backend is healthy, but whether
	// connections can be handed over to it.
	Redirect bool
}

// Check is what to find out about a backend, and how.
type Check struct {
	Target
	Service string         // name
	Backend string         // name
	To      netip.AddrPort // the backend's own address
	Way     *CheckWay      // the way of the service's packets to it; nil: the probes do not take it
	How     *HealthCheck   // with its defaults; not written to any more
	// Serving says that the backend gets connections already: one failure is not enough
	// to take it out when nothing else is known of it.
	Serving bool
}

// CheckWay is the way of a service's packets from a director to a backend.
type CheckWay struct {
	*CheckHost
	VIP     netip.Addr
	Segment Segment
	Backend TableBackend // its address, mode, MAC, VLAN and MTU
}

// CheckHost is the part that the ways of all checks share: see Director.
type CheckHost struct {
	Interfaces   []string
	TunnelSource []netip.Prefix
	Directors    []netip.Prefix
}

// FaultARP says that a backend answers ARP for the VIP.
const FaultARP = "arp"

// Way is how one probe gets to its backend.
type Way struct {
	To netip.AddrPort
	// Prepare is called with the probe's socket before anything is sent from it; nil: the socket
	// needs no preparation.
	Prepare func(socket int) error
	// Alike is equal for ways that prepare sockets alike, except for what Again does: Again adapts
	// a socket that was prepared for one of them to this way. nil: a prepared socket is of no use
	// to another way. Its type is comparable.
	Alike any
	Again func(socket int) error
	// MTU is the largest packet that clients may send by this way; 0: clients' packets do not take
	// it.
	MTU int
	// Fault is what is wrong with the backend already, and needs no probe; "": nothing.
	Fault, Detail string
	// Later says that the way is not known yet, but will be in a moment.
	Later bool
}

// HealthState is what is known about a backend's health.
type HealthState string

// The states of health.
const (
	HealthUnknown HealthState = "unknown" // no probe has ended yet
	HealthUp      HealthState = "up"
	HealthDown    HealthState = "down"
)
