package health

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"
)

// parameter is one of a chunk's, padded to words.
func parameter(kind uint16, value ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(value)))
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// answerOf is a packet of SCTP with a chunk, whose length is that of its contents.
func answerOf(tag uint32, kind byte, contents ...[]byte) []byte {
	body := slices.Concat(contents...)
	b := binary.BigEndian.AppendUint32([]byte{0x1b, 0x58, 0x9c, 0x40}, tag)
	b = append(b, 0, 0, 0, 0, kind, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(body)))
	b = append(b, body...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// What answers an INIT is an INIT ACK with a cookie, or an ABORT, with the INIT's tag and a right checksum; and
// the addresses that the server lists are read.
func TestReadInitAck(t *testing.T) {
	const tag = 0x01020304
	fixed := make([]byte, initLength-4)
	cookie := parameter(parameterCookie, 1, 2, 3, 4, 5)
	right := answerOf(tag, chunkInitAck, fixed, cookie)
	damaged := slices.Clone(right)
	damaged[len(damaged)-1] ^= 1
	uncomputed := slices.Clone(right)
	binary.LittleEndian.PutUint32(uncomputed[8:], 0)
	long := slices.Clone(right[:sctpHeader+4])
	binary.BigEndian.PutUint16(long[sctpHeader+2:], 400)
	binary.LittleEndian.PutUint32(long[8:], 0)
	for name, test := range map[string]struct {
		packet  []byte
		answers bool
		failed  Reason
		listed  []netip.Addr
	}{
		"right":            {right, true, "", nil},
		"not computed yet": {uncomputed, true, "", nil},
		"lists addresses": {answerOf(tag, chunkInitAck, fixed, parameter(parameterIPv4, 10, 0, 1, 11), cookie, parameter(parameterIPv6, netip.MustParseAddr("2001:db8::11").AsSlice()...)),
			true, "", []netip.Addr{netip.MustParseAddr("10.0.1.11"), netip.MustParseAddr("2001:db8::11")}},
		"of another INIT":                     {answerOf(tag+1, chunkInitAck, fixed, cookie), false, "", nil},
		"damaged":                             {damaged, false, "", nil},
		"cut":                                 {right[:10], false, "", nil},
		"no cookie":                           {answerOf(tag, chunkInitAck, fixed), true, Malformed, nil},
		"too short":                           {answerOf(tag, chunkInitAck, fixed[:4]), true, Malformed, nil},
		"ends too early":                      {long, true, Malformed, nil},
		"a parameter that is longer than all": {answerOf(tag, chunkInitAck, fixed, []byte{0, parameterCookie, 1, 0}), true, Malformed, nil},
		"an ABORT":                            {answerOf(tag, chunkAbort), true, Refused, nil},
		"data":                                {answerOf(tag, 0, fixed), true, Malformed, nil},
	} {
		said, answers, err := readInitAck(slices.Clone(test.packet), tag)
		var reason Reason
		if err != nil {
			reason = err.(*Failure).Reason
		}
		if answers != test.answers || reason != test.failed || !slices.Equal(said.addresses, test.listed) {
			t.Errorf("%s: it answers: %v, %q, and lists %v; want %v, %q, %v", name, answers, reason, said.addresses, test.answers, test.failed, test.listed)
		}
	}
}

// The checksum of an INIT is that of RFC 9260, and lies in the packet in little-endian order.
func TestInit(t *testing.T) {
	b := sctpInit(40000, 7000, 9)
	if len(b) != sctpHeader+initLength || binary.BigEndian.Uint16(b) != 40000 || binary.BigEndian.Uint16(b[2:]) != 7000 || b[sctpHeader] != chunkInit {
		t.Fatalf("an INIT is % x", b)
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	binary.LittleEndian.PutUint32(b[8:], 0)
	if want := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		t.Errorf("its checksum is %#x, want %#x", sum, want)
	}
}
