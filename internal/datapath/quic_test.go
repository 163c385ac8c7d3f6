package datapath

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/quiclb"
)

// encodeQUIC lays out what a ring has for QUIC behind its other lines, and says so in
// its header. It is the code that feeds the kernel: what connection IDs mean comes
// from the draft's vectors and from quiclb, so an error in it shows.
func encodeQUIC(s *testService, header []byte, first int) (lines [][]byte) {
	table := model.TableService{Salt: s.salt, QUIC: s.quic}
	var index []uint32
	for i, b := range s.backends {
		table.Backends = append(table.Backends, model.TableBackend{ServerID: b.serverID})
		index = append(index, s.first+uint32(i))
	}
	image := make([]byte, quicLines(&table)*abi.LineSize)
	buckets := writeQUIC(image, &table, index)
	header[22] |= byte(abi.RingFlagRING_QUIC)
	binary.NativeEndian.PutUint32(header[24:], uint32(first))
	binary.NativeEndian.PutUint32(header[28:], buckets)
	for line := range slices.Chunk(image, abi.LineSize) {
		lines = append(lines, line)
	}
	return lines
}

// quicPayload is a QUIC packet as the invariants have it (RFC 8999): with a short
// header no shorter than the shortest that a server can decrypt.
func quicPayload(long bool, cid []byte) packet.Bytes {
	if !long {
		return append(append(packet.Bytes{0x4f}, cid...), make([]byte, 20)...)
	}
	header := append(packet.Bytes{0xe3, 0, 0, 0, 1, byte(len(cid))}, cid...)
	return append(append(header, 4, 1, 2, 3, 4), make([]byte, 20)...)
}

// quicService is a UDP service whose ring has the first backend alone; a connection
// ID may name any.
func (w *testWorld) quicService(configs []model.QUICConfig, ids ...model.ServerIDs) scenario {
	n := len(w.services)
	is4 := n%2 == 0
	s := testService{vip: vipAddress(is4, n), protocol: model.UDP, port: singlePort(servicePort), salt: uint64(n) * 0x9876543, quic: configs,
		ring: model.Ring{Slots: []model.Slot{{Owner: 0, Next: model.NoBackend}}}}
	for i, id := range ids {
		s.backends = append(s.backends, testBackend{mode: model.GUE, address: backendAddress(true, n<<4+i), serverID: id})
	}
	return scenario{testService: w.add(s), client: clientOf(is4)}
}

// quicRow is the row of a packet with a connection ID that must reach a backend.
func (s scenario) quicRow(name string, long bool, cid []byte, backend int) row {
	return s.forward(fmt.Sprintf("%s, long header %t, %x", name, long, cid), s.flow(), backend,
		ip(s.client, s.vip), l4(model.UDP, clientPort, servicePort), quicPayload(long, cid))
}

func bytesOf(t testing.TB, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const draftKey = "8f95f09245765f80256934e50c66207f"

// draftVectors are the test vectors of draft-ietf-quic-load-balancers-21, appendix B,
// with the two corrections that quiclb explains.
var draftVectors = []struct {
	id                   uint8
	key                  string
	serverID, nonce, cid string
}{
	{0, "", "c4605e", "4504cc4f", "07c4605e4504cc4f"},
	{1, "", "350d28b420", "03487d970b", "2a350d28b42003487d970b"},
	{0, draftKey, "ed793a", "ee080dbf", "0720b1d07b359d3c"},
	{1, draftKey, "ed793a51d49b8f5fab65", "ee080dbf48", "2fcc381bc74cb4fbad2823a3d1f8fed2"},
	{2, draftKey, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", "504dd2d05a7b0de9b2b9907afb5ecf8cc3"},
	{3, draftKey, "ed793a51d49b8f5fab", "ee080dbf48c0d1e55d", "725779c9cc86beb3a3a4a3ca96fce4bfe0cdbc"},
}

// The draft's connection IDs find their server, behind long and short headers: one
// service has those without encryption, another those with, each configuration with
// server IDs of its own length.
func testQUICVectors(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, key := range []string{"", draftKey} {
		var configs []model.QUICConfig
		var named, other model.ServerIDs
		for _, v := range draftVectors {
			if v.key != key {
				continue
			}
			config := model.QUICConfig{ID: v.id, NonceLength: uint8(len(v.nonce) / 2)}
			copy(config.Key[:], bytesOf(t, v.key))
			configs = append(configs, config)
			id := bytesOf(t, v.serverID)
			named[v.id] = model.ServerID(id)
			id[len(id)-1] ^= 1
			other[v.id] = model.ServerID(id)
		}
		s := w.quicService(configs, other, named)
		for _, v := range draftVectors {
			for _, long := range []bool{false, true} {
				if v.key == key {
					rows = append(rows, s.quicRow("vector", long, bytesOf(t, v.cid), 1))
				}
			}
		}
	}
	loadTestDirector(t, w).check(t, rows)
}

// relaying is the service as it is for packets whose connection ID names a backend that is
// down: another one is asked to bring them there.
func (s scenario) relaying(backend int) scenario {
	service := *s.testService
	service.relayed = &service.backends[backend]
	s.testService = &service
	return s
}

// Packets that name no backend go by the ring: other configurations' numbers, unknown server
// IDs, connection IDs that are too short, backends that are down, and errors about a flow.
func testQUICUnroutable(t *testing.T) {
	w := &testWorld{}
	config := []model.QUICConfig{{ID: 2, NonceLength: 4}, {ID: 4, NonceLength: 4}}
	s := w.quicService(config, quicIDs("abc", "xyz", "ddd")...)
	s.backends[2].state = abi.BackendStateBACKEND_DOWN
	s.backends[1].serverID[4] = "zyx"
	plain := w.quicService(nil, quicIDs("abc", "xyz")...)
	backed := w.quicService(config, quicIDs("abc", "xyz", "ddd")...)
	backed.ring.Slots[0].Next = 1
	dead := w.quicService(config, quicIDs("abc", "xyz", "ddd")...)
	dead.ring.Slots[0].Next = 1
	dead.backends[2].state = abi.BackendStateBACKEND_DOWN
	elsewhere := w.quicService(config, quicIDs("abc", "xyz", "ddd")...)
	elsewhere.backends[2].state, elsewhere.backends[2].mode = abi.BackendStateBACKEND_DOWN, model.IPIP
	cid := func(number byte, id string) []byte { return append([]byte{number<<5 | 7}, id+"1234"...) }
	var rows []row
	for _, long := range []bool{false, true} {
		rows = append(rows,
			s.quicRow("named", long, cid(2, "xyz"), 1),
			s.quicRow("named, with bytes of the server's own", long, append(cid(2, "xyz"), 9, 9, 9), 1),
			backed.quicRow("named, no candidate of its slot", long, cid(2, "ddd"), 2),
			backed.quicRow("unknown, in a slot with a backup", long, cid(2, "xxx"), 0),
			s.quicRow("its name in another configuration", long, cid(4, "zyx"), 1),
			s.quicRow("not its name in that configuration", long, cid(4, "xyz"), 0),
			s.quicRow("another configuration", long, cid(3, "xyz"), 0),
			s.quicRow("no configuration", long, cid(7, "xyz"), 0),
			s.quicRow("unknown server", long, cid(2, "xya"), 0),
			s.relaying(2).quicRow("server is down", long, cid(2, "ddd"), 0),
			dead.relaying(2).quicRow("server is down, in a slot with a backup", long, cid(2, "ddd"), 0),
			elsewhere.quicRow("server is down, and has no agent", long, cid(2, "ddd"), 0),
			plain.quicRow("service without quic", long, cid(2, "xyz"), 0))
	}
	rows = append(rows, s.quicRow("cut short", true, cid(2, "xyz")[:7], 0), s.quicRow("empty", true, nil, 0))
	full := slices.Concat([]byte{0x40}, cid(2, "xyz"))
	lying := packet.Bytes{0xc0, 0, 0, 0, 1, 200}
	for name, payload := range map[string]packet.Bytes{"no payload": nil, "one byte": full[:1], "short header, cut": full[:8],
		"long header, cut": lying[:5], "connection ID longer than the packet": append(lying, full...)} {
		rows = append(rows, s.forward(name, s.flow(), 0, ip(s.client, s.vip), l4(model.UDP, clientPort, servicePort), payload))
	}
	loadTestDirector(t, w).check(t, rows)
}

// quicIDs are backends' server IDs, the same in all configurations.
func quicIDs(ids ...model.ServerID) (all []model.ServerIDs) {
	for _, id := range ids {
		all = append(all, model.SameServerID(id))
	}
	return all
}

// Every pair of lengths, in plaintext and encrypted, with two configurations of other
// lengths in each service and many servers: the program finds the server that
// quiclb wrote.
func testQUICLengths(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	w := &testWorld{}
	var pairs [][2]int // server ID and nonce
	for length := quiclb.MinServerIDLength; length+quiclb.MinNonceLength <= quiclb.MaxLength; length++ {
		for nonce := quiclb.MinNonceLength; length+nonce <= quiclb.MaxLength; nonce++ {
			pairs = append(pairs, [2]int{length, nonce})
		}
	}
	var rows []row
	for i, pair := range pairs {
		other := pairs[len(pairs)-1-i]
		configs := randomConfigs(r, uint8(pair[1]), uint8(other[1]))
		ids := make([]model.ServerIDs, 12)
		for n, length := range []int{pair[0], other[0]} {
			for j, id := range randomIDs(r, length, len(ids)) {
				ids[j][configs[n].ID] = id
			}
		}
		rows = append(rows, w.quicService(configs, ids...).randomQUIC(t, r, configs)...)
	}
	loadTestDirector(t, w).check(t, rows)
}

// randomIDs are so many server IDs, no two the same.
func randomIDs(r *rand.Rand, length, count int) []model.ServerID {
	ids := make([]model.ServerID, 0, count)
	for len(ids) < count {
		id := make([]byte, length)
		for i := range id {
			id[i] = byte(r.Uint32())
		}
		if !slices.Contains(ids, model.ServerID(id)) {
			ids = append(ids, model.ServerID(id))
		}
	}
	return ids
}

// randomConfigs are two, without a key and with one.
func randomConfigs(r *rand.Rand, plain, encrypted uint8) []model.QUICConfig {
	numbers := r.Perm(model.QUICConfigs)
	configs := []model.QUICConfig{{ID: uint8(numbers[0]), NonceLength: plain}, {ID: uint8(numbers[1]), NonceLength: encrypted}}
	for i := range configs[1].Key {
		configs[1].Key[i] = byte(r.Uint32())
	}
	return configs
}

func (s scenario) randomQUIC(t *testing.T, r *rand.Rand, configs []model.QUICConfig) (rows []row) {
	t.Helper()
	for _, c := range configs {
		backend := r.IntN(len(s.backends))
		id := []byte(s.backends[backend].serverID[c.ID])
		var key []byte
		if !c.Key.IsZero() {
			key = c.Key[:]
		}
		codec, err := quiclb.New(quiclb.Config{ID: c.ID, ServerIDLength: len(id), NonceLength: int(c.NonceLength), Key: key})
		if err != nil {
			t.Fatal(err)
		}
		nonce := make([]byte, c.NonceLength)
		for i := range nonce {
			nonce[i] = byte(r.Uint32())
		}
		cid, err := codec.Encode(id, nonce)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, s.quicRow(fmt.Sprintf("server ID of %d bytes", len(id)), r.IntN(2) == 0, cid, backend))
	}
	return rows
}
