package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Capture asks a director for packets as they come and leave, with what became of them. An empty
// field matches anything. Packets of no service are left out, unless their reason is named.
type Capture struct {
	Service   string   `json:"service,omitempty" maxLength:"253" doc:"name of the service that they are of"`
	Segment   *Segment `json:"segment,omitempty" maxLength:"64" doc:"that they come in: none, vlan:100, vxlan:5001"`
	VIP       string   `json:"vip,omitempty" maxLength:"253" doc:"address of the service, perhaps with a port"`
	Client    string   `json:"client,omitempty" maxLength:"253" doc:"prefix, or address, perhaps with a port"`
	Backend   string   `json:"backend,omitempty" maxLength:"253" doc:"name of the backend, or its address, perhaps with a port"`
	Protocol  string   `json:"protocol,omitempty" enum:"tcp,udp,sctp,icmp,icmpv6" doc:"of an ICMP error: that of the packet inside"`
	Interface string   `json:"interface,omitempty" maxLength:"253" doc:"of the director's, that they come in by"`
	Reasons   []string `json:"reasons,omitempty" maxItems:"64" doc:"what became of them, as drop_no_backend"`
	Drops     bool     `json:"drops,omitempty" doc:"only what is dropped"`

	Sample   int      `json:"sample,omitempty" minimum:"1" maximum:"1000000" default:"1" doc:"one of so many, at random"`
	Snap     int      `json:"snap,omitempty" minimum:"64" maximum:"2048" default:"256" doc:"bytes of a frame, at most"`
	Packets  int      `json:"packets,omitempty" minimum:"1" maximum:"10000000" default:"10000" doc:"it ends after so many"`
	Duration Duration `json:"duration,omitempty" doc:"it ends after so long: 1m, and 1h at most"`
	Rate     int      `json:"rate,omitempty" minimum:"1" maximum:"50000" default:"2000" doc:"in a second, at most"`
}

// Bounds and defaults of a capture.
const (
	CaptureSnap, MostCaptureSnap         = 256, 2048
	leastCaptureSnap                     = 64
	CapturePackets, MostCapturePackets   = 10_000, 10_000_000
	CaptureRate, MostCaptureRate         = 2_000, 50_000
	CaptureDuration, MostCaptureDuration = Duration(time.Minute), Duration(time.Hour)
	mostCaptureSample                    = 1_000_000
)

// SetDefaults fills in what is not given.
func (c *Capture) SetDefaults() {
	c.Sample, c.Snap, c.Packets = cmp.Or(c.Sample, 1), cmp.Or(c.Snap, CaptureSnap), cmp.Or(c.Packets, CapturePackets)
	c.Rate, c.Duration = cmp.Or(c.Rate, CaptureRate), cmp.Or(c.Duration, CaptureDuration)
}

// CaptureProtocols are the protocols that can be asked for, with their numbers.
var CaptureProtocols = map[string]uint8{"tcp": uint8(TCP), "udp": uint8(UDP), "sctp": uint8(SCTP), "icmp": 1, "icmpv6": 58}

// Validate returns FieldErrors, or nil. It cannot check names.
func (c *Capture) Validate() error {
	var errs FieldErrors
	for _, f := range []struct {
		name        string
		value       int
		least, most int
	}{{"sample", c.Sample, 1, mostCaptureSample}, {"snap", c.Snap, leastCaptureSnap, MostCaptureSnap},
		{"packets", c.Packets, 1, MostCapturePackets}, {"rate", c.Rate, 1, MostCaptureRate}} {
		if f.value < f.least || f.value > f.most {
			errs.add(f.name, "%d: is %d to %d", f.value, f.least, f.most)
		}
	}
	if c.Duration <= 0 || c.Duration > MostCaptureDuration {
		errs.add("duration", "%v: is more than 0, and at most %v", c.Duration, MostCaptureDuration)
	}
	if _, known := CaptureProtocols[c.Protocol]; !known && c.Protocol != "" {
		errs.add("protocol", "%q is none of icmp, icmpv6, sctp, tcp, udp", c.Protocol)
	}
	if c.Drops && len(c.Reasons) > 0 {
		errs.add("drops", "is about reasons, too: give one of the two")
	}
	if _, err := ParseCaptureEnd(c.VIP); c.VIP != "" && err != nil {
		errs.add("vip", "%v", err)
	}
	if _, err := ParseCaptureEnd(c.Client); c.Client != "" && err != nil {
		errs.add("client", "%v", err)
	}
	if errs == nil {
		return nil
	}
	return errs
}

// CaptureEnd is one end of packets: addresses, and a port; 0: any.
type CaptureEnd struct {
	Prefix netip.Prefix
	Port   uint16
}

// ParseCaptureEnd reads a prefix, an address, or an address with a port.
func ParseCaptureEnd(text string) (CaptureEnd, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return CaptureEnd{Prefix: netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())}, nil
	}
	if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().Is4In6() {
		return CaptureEnd{Prefix: p.Masked()}, nil
	}
	if end, err := netip.ParseAddrPort(text); err == nil && end.Addr().Zone() == "" && end.Port() != 0 {
		a := end.Addr().Unmap()
		return CaptureEnd{netip.PrefixFrom(a, a.BitLen()), end.Port()}, nil
	}
	return CaptureEnd{}, fmt.Errorf("%q is no prefix, and no address with or without a port (198.51.100.0/24, 198.51.100.7, [2001:db8::7]:443)", text)
}

// CapturedPacket is a packet that a capture has taken.
type CapturedPacket struct {
	Number    uint64    `json:"number" doc:"the first is 1"`
	Time      time.Time `json:"time"`
	Interface string    `json:"interface" doc:"that it came in by"`
	Segment   Segment   `json:"segment,omitzero" doc:"that it came in, where that was found out"`
	Reason    string    `json:"reason" doc:"the label under which it is counted"`
	Action    uint8     `json:"action" doc:"XDP's: 1 drop, 2 pass, 3 back by the interface that it came by, 4 redirect"`
	Service   string    `json:"service,omitempty" maxLength:"253" doc:"its name"`
	Backend   string    `json:"backend,omitempty" maxLength:"253" doc:"its name"`
	Address   string    `json:"address,omitempty" doc:"of the backend, with a port where it has one of its own"`
	Slot      *int      `json:"slot,omitempty" doc:"of the service's ring, where that was asked"`
	Slots     int       `json:"slots,omitempty" doc:"how many the ring has"`
	Leaves    string    `json:"leaves,omitempty" doc:"interface that it left by"`
	In        Hex       `json:"in" doc:"the frame as it came, up to the snap length"`
	InLength  int       `json:"in-length" doc:"all bytes of that"`
	Out       Hex       `json:"out,omitempty" doc:"the frame as it left, or as the kernel got it changed"`
	OutLength int       `json:"out-length,omitempty"`
}

// Text says what became of the packet, and why, in one line.
func (p *CapturedPacket) Text() string {
	words := []string{p.Reason}
	if p.Segment != (Segment{}) {
		words = append(words, "segment "+p.Segment.String())
	}
	if p.Service != "" {
		words = append(words, "service "+p.Service)
	}
	if p.Address != "" {
		words = append(words, strings.TrimSpace("backend "+p.Backend)+" "+p.Address)
	}
	if p.Slot != nil {
		words = append(words, "slot "+strconv.Itoa(*p.Slot)+" of "+strconv.Itoa(p.Slots))
	}
	if p.Leaves != "" {
		words = append(words, "leaves by "+p.Leaves)
	}
	return strings.Join(words, ", ")
}

// CaptureCounts are what a capture has seen until now.
type CaptureCounts struct {
	Matched uint64 `json:"matched" doc:"packets that the filter wants"`
	Limited uint64 `json:"limited" doc:"of those, left out: there were more than the rate"`
	Lost    uint64 `json:"lost" doc:"of those, lost: they were not read quickly enough"`
}

// Add adds other counts.
func (c *CaptureCounts) Add(more CaptureCounts) {
	c.Matched, c.Limited, c.Lost = c.Matched+more.Matched, c.Limited+more.Limited, c.Lost+more.Lost
}

// CaptureStatus is what is captured now, and has been since the director started.
type CaptureStatus struct {
	Begun         uint64 `json:"begun" doc:"captures, the one that runs among them"`
	CaptureCounts `json:",inline"`
	Running       *CaptureRunning `json:"running,omitempty" doc:"the capture that runs; absent: none does"`
}

// CaptureRunning is a capture that runs, and the client that asked for it.
type CaptureRunning struct {
	Client string    `json:"client" doc:"the name of who asked for it in api.clients, or local: by the unix socket"`
	Since  time.Time `json:"since"`
	Wanted Capture   `json:"wanted"`
}

// CaptureMessage is one line of a capture: a packet, or the state of the capture.
type CaptureMessage struct {
	Packet *CapturedPacket `json:"packet,omitempty"`
	Counts *CaptureCounts  `json:"counts,omitempty"`
	// Began is when the capture began; it is sent once, with the director's interfaces.
	Began      *time.Time `json:"began,omitempty" doc:"said first: from then on packets are taken"`
	Interfaces []string   `json:"interfaces,omitempty" doc:"said with began: the director's"`
	// Ended is why the capture has ended; it is sent last.
	Ended string `json:"ended,omitempty" doc:"said last: why it has ended: packets, duration, or director, which ends itself"`
}
