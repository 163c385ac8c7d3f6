package packet

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// A Checker checks the header where the cursor stands and moves behind it.
type Checker func(*cursor) error

// Check fails the test unless the frame has the headers that the checkers name,
// outermost first, and nothing after them. The message says which one differs,
// in what, and shows the frame.
func Check(t testing.TB, frame []byte, checkers ...Checker) {
	t.Helper()
	if err := Match(frame, checkers...); err != nil {
		t.Errorf("%v\n%s", err, Describe(frame))
	}
}

// Match is Check as a condition, to look for a frame among others.
func Match(frame []byte, checkers ...Checker) error {
	c := newCursor(frame)
	for i, check := range checkers {
		name := c.next
		if err := check(c); err != nil {
			return fmt.Errorf("header %d (%s): %w", i+1, name, err)
		}
	}
	if len(c.rest) > 0 {
		return fmt.Errorf("%d bytes (%s) follow the last header", len(c.rest), c.next)
	}
	return nil
}

// differs is an error unless got is want.
func differs[T comparable](what string, got, want T) error {
	if got != want {
		return fmt.Errorf("%s is %v, want %v", what, got, want)
	}
	return nil
}

func first(errs ...error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

// Ether checks the addresses of an Ethernet header.
func Ether(dst, src [6]byte) Checker {
	return func(c *cursor) error {
		var h layers.Ethernet
		if err := c.decode(&h); err != nil {
			return err
		}
		return first(
			differs("destination", h.DstMAC.String(), fmt.Sprint(mac(dst))),
			differs("source", h.SrcMAC.String(), fmt.Sprint(mac(src))))
	}
}

type mac [6]byte

func (m mac) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// VLAN checks the ID of a VLAN tag.
func VLAN(id uint16) Checker {
	return func(c *cursor) error {
		var h layers.Dot1Q
		if err := c.decode(&h); err != nil {
			return err
		}
		return differs("VLAN ID", h.VLANIdentifier, id)
	}
}

// IPOption checks one more field of an IPv4 or IPv6 header.
type IPOption func(v4 *layers.IPv4, v6 *layers.IPv6) error

// IP checks the addresses of an IPv4 or IPv6 header, and what the options say.
func IP(src, dst netip.Addr, options ...IPOption) Checker {
	return Tunnel(netip.PrefixFrom(src, src.BitLen()), dst, options...)
}

// Tunnel is IP for an outer header, whose source depends on the flow and is
// only known to be in a prefix.
func Tunnel(sources netip.Prefix, dst netip.Addr, options ...IPOption) Checker {
	if dst.Is4() {
		return func(c *cursor) error {
			var h layers.IPv4
			if err := c.decode(&h); err != nil {
				return err
			}
			return checkIP(sources, dst, h.SrcIP, h.DstIP, options, &h, nil)
		}
	}
	return func(c *cursor) error {
		var h layers.IPv6
		if err := c.decode(&h); err != nil {
			return err
		}
		return checkIP(sources, dst, h.SrcIP, h.DstIP, options, nil, &h)
	}
}

func checkIP(src netip.Prefix, dst netip.Addr, gotSrc, gotDst []byte, options []IPOption, v4 *layers.IPv4, v6 *layers.IPv6) error {
	s, _ := netip.AddrFromSlice(gotSrc)
	d, _ := netip.AddrFromSlice(gotDst)
	if !src.Contains(s) {
		return fmt.Errorf("source is %v, want %v", s, src)
	}
	err := differs("destination", d, dst)
	for _, option := range options {
		err = first(err, option(v4, v6))
	}
	return err
}

// TTL checks the TTL or hop limit.
func TTL(want uint8) IPOption {
	return func(v4 *layers.IPv4, v6 *layers.IPv6) error {
		if v4 != nil {
			return differs("TTL", v4.TTL, want)
		}
		return differs("hop limit", v6.HopLimit, want)
	}
}

// TOS checks the type of service or traffic class: DSCP << 2 | ECN.
func TOS(want uint8) IPOption {
	return func(v4 *layers.IPv4, v6 *layers.IPv6) error {
		if v4 != nil {
			return differs("TOS", v4.TOS, want)
		}
		return differs("traffic class", v6.TrafficClass, want)
	}
}

// TCPOption checks one more field of a TCP header.
type TCPOption func(*layers.TCP) error

// TCP checks the ports of a TCP header, and what the options say; a port 0 is any.
func TCP(src, dst uint16, options ...TCPOption) Checker {
	return func(c *cursor) error {
		var h layers.TCP
		if err := c.decode(&h); err != nil {
			return err
		}
		if src == 0 {
			src = uint16(h.SrcPort)
		}
		if dst == 0 {
			dst = uint16(h.DstPort)
		}
		err := first(differs("source port", uint16(h.SrcPort), src), differs("destination port", uint16(h.DstPort), dst))
		for _, option := range options {
			err = first(err, option(&h))
		}
		return err
	}
}

// TCPFlags checks all flags of a TCP header.
func TCPFlags(want uint8) TCPOption {
	return func(h *layers.TCP) error { return differs("flags", h.Contents[13], want) }
}

// MSS checks the maximum segment size that a TCP header offers; 0: none.
func MSS(want uint16) TCPOption {
	return func(h *layers.TCP) error {
		got := uint16(0)
		for _, o := range h.Options {
			if o.OptionType == layers.TCPOptionKindMSS && len(o.OptionData) == 2 {
				got = uint16(o.OptionData[0])<<8 | uint16(o.OptionData[1])
			}
		}
		return differs("MSS", got, want)
	}
}

// UDP checks the ports of a UDP header; a port 0 is any.
func UDP(src, dst uint16) Checker {
	return func(c *cursor) error {
		var h layers.UDP
		if err := c.decode(&h); err != nil {
			return err
		}
		if src == 0 {
			src = uint16(h.SrcPort)
		}
		if dst == 0 {
			dst = uint16(h.DstPort)
		}
		return first(differs("source port", uint16(h.SrcPort), src), differs("destination port", uint16(h.DstPort), dst))
	}
}

// GUE checks a data header of GUE variant 0 and its private data.
func GUE(protocol uint8, private []byte) Checker {
	return func(c *cursor) error {
		var h gue
		if err := c.decode(&h); err != nil {
			return err
		}
		return first(differs("control bit", h.C, false),
			differs("protocol", uint8(h.Protocol), protocol),
			differs("private data", fmt.Sprintf("%x", h.Extensions), fmt.Sprintf("%x", private)))
	}
}

// ICMPv4 checks the first 8 bytes of an ICMP message.
func ICMPv4(kind, code uint8, rest uint32) Checker {
	return func(c *cursor) error {
		var h layers.ICMPv4
		if err := c.decode(&h); err != nil {
			return err
		}
		return first(differs("type", h.TypeCode.Type(), kind), differs("code", h.TypeCode.Code(), code),
			differs("bytes 4 to 7", EchoID(h.Id, h.Seq), rest))
	}
}

// ICMPv6 checks the first 8 bytes of an ICMPv6 message.
func ICMPv6(kind, code uint8, rest uint32) Checker {
	return func(c *cursor) error {
		var h layers.ICMPv6
		if err := c.decode(&h); err != nil {
			return err
		}
		var got uint32
		for _, b := range h.Payload[:min(4, len(h.Payload))] {
			got = got<<8 | uint32(b)
		}
		return first(differs("type", h.TypeCode.Type(), kind), differs("code", h.TypeCode.Code(), code),
			differs("bytes 4 to 7", got, rest))
	}
}

// Payload checks all that is left.
func Payload(want []byte) Checker {
	return func(c *cursor) error {
		got := c.rest
		c.rest, c.next = nil, gopacket.LayerTypeZero
		if !bytes.Equal(got, want) {
			return fmt.Errorf("payload is %d bytes %.40x, want %d bytes %.40x", len(got), got, len(want), want)
		}
		return nil
	}
}

// Anything accepts all that is left.
func Anything() Checker {
	return func(c *cursor) error {
		c.rest, c.next = nil, gopacket.LayerTypeZero
		return nil
	}
}
