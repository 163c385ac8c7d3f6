package twin

import (
	"errors"
	"net/netip"
)

// rowKind distinguishes a row from other private data in GUE.
const rowKind = 0x57

// ErrMalformed says that a row contradicts itself.
var ErrMalformed = errors.New("a row that contradicts itself")

// Bytes is the row as GUE's private data.
func (r *Row) Bytes() []byte {
	if r == nil {
		return nil
	}
	private := []byte{rowKind, byte(len(r.Hops)), byte(r.Next), 0}
	for _, hop := range r.Hops {
		private = append(private, hop.AsSlice()...)
	}
	return private
}

// ReadRow reads the private data of a packet over IPv4, or IPv6: nil if there is none or it is of
// another kind. The error is ErrMalformed.
func ReadRow(private []byte, over4 bool) (*Row, error) {
	if len(private) < 4 || private[0] != rowKind {
		return nil, nil
	}
	count, next, addresses := int(private[1]), int(private[2]), private[4:]
	size := 16
	if over4 {
		size = 4
	}
	if count < 1 || count > hops4 || next > count || private[3] != 0 || len(addresses) != count*size {
		return nil, ErrMalformed
	}
	row := &Row{Next: next}
	for ; len(addresses) > 0; addresses = addresses[size:] {
		hop, _ := netip.AddrFromSlice(addresses[:size])
		row.Hops = append(row.Hops, hop)
	}
	return row, nil
}
