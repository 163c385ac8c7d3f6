package model

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// PortRange is an inclusive range of ports. The zero value is all ports.
type PortRange struct {
	First, Last uint16
}

// All reports whether the range is "all ports".
func (r PortRange) All() bool { return r == PortRange{} }

// Single reports whether the range is one port.
func (r PortRange) Single() bool { return r.First == r.Last && r.First != 0 }

// Contains reports whether the port is in the range.
func (r PortRange) Contains(port uint16) bool {
	return r.All() || r.First <= port && port <= r.Last
}

// Overlaps reports whether some port is in both ranges.
func (r PortRange) Overlaps(o PortRange) bool {
	return r.All() || o.All() || r.First <= o.Last && o.First <= r.Last
}

// String returns "443", "8000-8100" or "all".
func (r PortRange) String() string {
	switch {
	case r.All():
		return "all"
	case r.First == r.Last:
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText writes what String returns.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what String returns.
func (r *PortRange) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "all" {
		*r = PortRange{}
		return nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	f, err := parsePort(first)
	if err != nil {
		return err
	}
	l, err := parsePort(last)
	if err != nil {
		return err
	}
	if f > l {
		return fmt.Errorf("port range %q ends before it begins", s)
	}
	*r = PortRange{f, l}
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535, a range (8000-8100) or all", s)
	}
	return uint16(n), nil
}

// SegmentKind is the kind of a tenant's network. The numbers are those of enum
// segment_kind in bpf/abi/types.h.
type SegmentKind uint8

// The kinds of segment.
const (
	SegmentNone SegmentKind = iota
	SegmentVLAN
	SegmentVXLAN
	SegmentGeneve
)

var segmentKindNames = names[SegmentKind]{kind: "segment", list: []name[SegmentKind]{
	{SegmentNone, "none"}, {SegmentVLAN, "vlan"}, {SegmentVXLAN, "vxlan"}, {SegmentGeneve, "geneve"}}}

// Segment is a tenant's network. The zero value is none: untagged packets.
type Segment struct {
	Kind SegmentKind
	// ID is the VLAN ID (two tags, IEEE 802.1ad: outer << 12 | inner) or the VNI.
	ID uint32
}

// Key returns the segment as the datapath writes it: kind << 24 | ID.
func (s Segment) Key() uint32 { return uint32(s.Kind)<<24 | s.ID }

// Compare orders segments: none comes first.
func (s Segment) Compare(o Segment) int { return cmp.Compare(s.Key(), o.Key()) }

// SegmentOf returns the segment that has a key.
func SegmentOf(key uint32) Segment {
	return Segment{Kind: SegmentKind(key >> 24), ID: key & (1<<24 - 1)}
}

// String returns "none", "vlan:100", "vlan:100.200", "vxlan:5000" or "geneve:5000".
func (s Segment) String() string {
	switch {
	case s.Kind == SegmentNone:
		return "none"
	case s.Kind == SegmentVLAN && s.ID > 0xfff:
		return fmt.Sprintf("vlan:%d.%d", s.ID>>12, s.ID&0xfff)
	}
	return fmt.Sprintf("%s:%d", segmentKindNames.text(s.Kind), s.ID)
}

// MarshalText writes what String returns.
func (s Segment) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String returns.
func (s *Segment) UnmarshalText(text []byte) error {
	if len(text) == 0 || string(text) == "none" {
		*s = Segment{}
		return nil
	}
	kindText, idText, found := strings.Cut(string(text), ":")
	var kind SegmentKind
	if err := segmentKindNames.read(&kind, []byte(kindText)); err != nil {
		if unknown := (*UnknownName)(nil); errors.As(err, &unknown) {
			unknown.Known = []string{"none", "vlan:ID", "vxlan:VNI", "geneve:VNI"}
			if found && unknown.Meant != "" {
				unknown.Meant += ":" + idText
			}
		}
		return err
	}
	if !found || kind == SegmentNone {
		return fmt.Errorf("segment %q is not none, vlan:ID, vxlan:VNI or geneve:VNI", text)
	}
	if kind == SegmentVLAN {
		return s.unmarshalVLAN(idText)
	}
	id, err := strconv.ParseUint(idText, 10, 24)
	if err != nil {
		return fmt.Errorf("segment %q: the VNI is not a number from 0 to %d", text, 1<<24-1)
	}
	*s = Segment{kind, uint32(id)}
	return nil
}

func (s *Segment) unmarshalVLAN(text string) error {
	id := uint32(0)
	tags := strings.Split(text, ".")
	for _, tag := range tags {
		n, err := strconv.ParseUint(tag, 10, 12)
		if err != nil || n == 0 || n == 4095 || len(tags) > 2 {
			return fmt.Errorf("segment \"vlan:%s\": not one or two VLAN IDs from 1 to 4094", text)
		}
		id = id<<12 | uint32(n)
	}
	*s = Segment{SegmentVLAN, id}
	return nil
}

// MAC is an Ethernet address. The zero value is none.
type MAC [6]byte

// IsZero reports whether there is no address.
func (m MAC) IsZero() bool { return m == MAC{} }

// String returns "02:00:00:00:00:01", or nothing for the zero value.
func (m MAC) String() string {
	if m.IsZero() {
		return ""
	}
	return net.HardwareAddr(m[:]).String()
}

// MarshalText writes what String returns.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what String returns; the address must be unicast.
func (m *MAC) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = MAC{}
		return nil
	}
	a, err := net.ParseMAC(string(text))
	if err != nil || len(a) != len(m) || a[0]&1 != 0 {
		return fmt.Errorf("mac %q is not a unicast Ethernet address", text)
	}
	copy(m[:], a)
	return nil
}

// Duration is a time.Duration that is written as text: 50ms, 60s, 24h. The zero value is none, and
// is not written as text: where it has a meaning, it means that no duration was given.
type Duration time.Duration

// String returns "1m30s".
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a number with a unit, or several: 50ms, 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	value, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write 500ms, 60s or 24h, say", text)
	}
	if value <= 0 {
		return fmt.Errorf("%s is not a duration above 0", text)
	}
	*d = Duration(value)
	return nil
}

// Hex is bytes whose text is hexadecimal, as of a frame.
type Hex []byte

// MarshalText returns two digits for each byte.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads what MarshalText returns.
func (h *Hex) UnmarshalText(text []byte) error {
	bytes, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("bytes in hexadecimal: %w", err)
	}
	*h = bytes
	return nil
}
