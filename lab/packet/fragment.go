package packet

// Fragments returns the packet that the headers describe, cut into fragments
// that carry at most size bytes (a multiple of 8) each. Headers up to the last
// IP header are in all of them.
func Fragments(id uint32, size int, headers ...Header) [][]byte {
	last := 0
	for i, h := range headers {
		switch h.(type) {
		case IPv4Header, IPv6Header:
			last = i
		}
	}
	whole := Build(headers...)
	body := whole[len(Build(headers[:last+1]...)):]
	protocol := place{inner: headers[last+1:]}.nextProtocol()

	var fragments [][]byte
	for offset := 0; offset < len(body); offset += size {
		end := min(offset+size, len(body))
		part := append([]Header(nil), headers[:last]...)
		switch ip := headers[last].(type) {
		case IPv4Header:
			ip.ID, ip.Protocol = uint16(id), protocol
			ip.Offset, ip.MF = uint16(offset), end < len(body)
			part = append(part, ip)
		case IPv6Header:
			part = append(part, ip, FragmentHeader{Offset: uint16(offset), More: end < len(body), ID: id, Next: protocol})
		}
		fragments = append(fragments, Build(append(part, Bytes(body[offset:end]))...))
	}
	return fragments
}
