package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// VerifyChecksums checks every checksum of a frame, also behind tunnel headers
// and in the packet that an ICMP error quotes as far as that is complete. A UDP
// checksum of zero ("none") is right over IPv4, and over IPv6 only under a
// tunnel header (RFC 6935).
func VerifyChecksums(frame []byte) error {
	c := newCursor(frame)
	var errs []error
	for depth := 1; ; depth++ {
		name := c.next
		l := c.newLayer()
		if l == nil {
			return errors.Join(errs...)
		}
		if err := c.decode(l); err != nil {
			if c.quoted { // cut short, as it may be
				return errors.Join(errs...)
			}
			return errors.Join(append(errs, fmt.Errorf("header %d: %w", depth, err))...)
		}
		if err := c.verify(l); err != nil {
			errs = append(errs, fmt.Errorf("header %d (%s): %w", depth, name, err))
		}
	}
}

// verify checks the checksum of the header that was decoded last.
func (c *cursor) verify(l layer) error {
	if s, ok := l.(*layers.SCTP); ok {
		return c.verifySCTP(s)
	}
	sum, ok := l.(gopacket.LayerWithChecksum)
	if !ok {
		return nil
	}
	if _, isIP := l.(*layers.IPv4); !isIP && c.truncated {
		if c.quoted {
			return nil
		}
		return errors.New("packet is shorter than its length says")
	}
	if t, ok := l.(interface {
		SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
	}); ok {
		if err := t.SetNetworkLayerForChecksum(c.network); err != nil {
			return fmt.Errorf("pseudo header: %w", err)
		}
	}
	if u, ok := l.(*layers.UDP); ok && u.Checksum == 0 {
		if _, over6 := c.network.(*layers.IPv6); over6 && c.next != layers.LayerTypeAGUEVar0 {
			return errors.New("no UDP checksum over IPv6")
		}
		return nil
	}
	err, result := sum.VerifyChecksum()
	if err != nil {
		return fmt.Errorf("compute checksum: %w", err)
	}
	if !result.Valid {
		return fmt.Errorf("checksum %#04x, want %#04x", result.Actual, result.Correct)
	}
	return nil
}

// verifySCTP checks SCTP's checksum, which gopacket writes in another byte order.
func (c *cursor) verifySCTP(s *layers.SCTP) error {
	if c.quoted || c.truncated {
		return nil
	}
	b := slices.Concat(s.Contents, s.Payload)
	is := binary.LittleEndian.Uint32(b[8:])
	binary.LittleEndian.PutUint32(b[8:], 0)
	if want := crc32.Checksum(b, castagnoli); is != want {
		return fmt.Errorf("checksum %#08x, want %#08x", is, want)
	}
	return nil
}
