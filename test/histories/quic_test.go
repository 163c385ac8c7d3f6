package histories

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/quiclb"
)

// quicConfig has an ID that the first byte of a test's text cannot have.
var quicConfig = model.QUICConfig{ID: 5, NonceLength: 13, Key: model.QUICKey{1, 2, 3}}

const serverIDLength = 3

// serverID is the server ID of an address.
func serverID(a netip.Addr) []byte {
	return append([]byte{7, 7}, a.AsSlice()[len(a.AsSlice())-1])
}

// speakQUIC makes the service's servers give out connection IDs that name them.
func (h *life) speakQUIC() {
	h.Helper()
	codec, err := quiclb.New(quiclb.Config{ID: quicConfig.ID, ServerIDLength: serverIDLength, NonceLength: int(quicConfig.NonceLength), Key: quicConfig.Key[:]})
	must(h, err)
	h.codec, h.service.QUIC = codec, []model.QUICConfig{quicConfig}
}

func (s *speaker) newID(of netip.AddrPort) []byte {
	s.Helper()
	nonce := make([]byte, quicConfig.NonceLength)
	binary.BigEndian.PutUint64(nonce, s.r.Uint64())
	id, err := s.codec.Encode(serverID(of.Addr()), nonce)
	must(s, err)
	return id
}

// named is the index of the director's backend that the connection ID names; -1: none.
func (s *speaker) named(d *director) int {
	if s.id == nil {
		return -1
	}
	return slices.IndexFunc(d.service.Backends, func(b model.TableBackend) bool { return b.Address == s.backend.Addr() })
}

// data is the content of a datagram: with QUIC it begins with a short header's first byte and
// connection ID.
func (s *speaker) data() string {
	text := fmt.Sprint("from ", s.flow.Source, ", port ", s.flow.SourcePort, ": ", s.r.Uint32())
	if s.id == nil {
		return text
	}
	const shortHeader = 0x40
	return string(append([]byte{shortHeader}, s.id...)) + text
}
