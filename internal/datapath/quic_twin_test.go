package datapath

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/quiclb"
)

// quicMixed is a service with every algorithm, server IDs of three lengths, and a
// backend that is down.
func (w *testWorld) quicMixed() scenario {
	key := model.QUICKey{1, 2, 3}
	configs := []model.QUICConfig{{ID: 0, NonceLength: 4}, {ID: 1, NonceLength: 13, Key: key}, {ID: 2, NonceLength: 5, Key: key}, {ID: 5, NonceLength: 4, Key: key}}
	s := w.quicService(configs,
		model.ServerIDs{0: "abc", 1: "rst", 2: "ABC", 5: "0123456789"},
		model.ServerIDs{0: "xyz", 1: "uvw", 2: "XYZ", 5: "9876543210"},
		model.ServerIDs{0: "ddd", 1: "eee", 2: "fff", 5: "dddddddddd"})
	s.backends[2].state = abi.BackendStateBACKEND_DOWN
	return s
}

// quicTwin is what the program has to make of what is behind the UDP header: written
// from RFC 8999 and the draft, with quiclb. The program wants as many bytes
// in the frame as it may read at once, which every QUIC packet has.
type quicTwin struct {
	scenario
	codecs *quiclb.Codecs
}

func newQUICTwin(t testing.TB, s scenario) quicTwin {
	t.Helper()
	var configs []quiclb.Config
	for _, c := range s.quic {
		config := quiclb.Config{ID: c.ID, ServerIDLength: len(s.backends[0].serverID[c.ID]), NonceLength: int(c.NonceLength)}
		if !c.Key.IsZero() {
			config.Key = c.Key[:]
		}
		configs = append(configs, config)
	}
	codecs, err := quiclb.NewCodecs(configs...)
	if err != nil {
		t.Fatal(err)
	}
	return quicTwin{s, codecs}
}

// ask returns the backend that the packet is for, 0 being the ring's too, and what its
// connection ID said.
func (q quicTwin) ask(payload []byte) (backend int, event abi.QuicEvent) {
	const other = abi.QuicEventQUIC_OTHER
	if len(payload) < 6 {
		return 0, other
	}
	at, length := 1, len(payload)-1
	if payload[0]&0x80 != 0 {
		at, length = 6, int(payload[5])
	}
	if at+length > len(payload) || at == len(payload) {
		return 0, other
	}
	cid := payload[at : at+length]
	// A long header's connection ID may be empty; the byte after it is then not its own.
	number, id, err := q.codecs.Decode(cid)
	if err != nil {
		return 0, other
	}
	if read := at + 1 + aesBlockSize + q.rightAt(number); read > len(payload) {
		return 0, other
	}
	for i, b := range q.backends {
		if b.serverID[number] == model.ServerID(id) {
			if b.state == abi.BackendStateBACKEND_DOWN {
				return 0, abi.QuicEventQUIC_DOWN
			}
			return i, abi.QuicEventQUIC_FOUND
		}
	}
	return 0, abi.QuicEventQUIC_UNKNOWN
}

// rightAt is where the right half of what follows the first byte begins.
func (q quicTwin) rightAt(number uint8) int {
	i := slices.IndexFunc(q.quic, func(c model.QUICConfig) bool { return c.ID == number })
	length := len(q.backends[0].serverID[number]) + int(q.quic[i].NonceLength)
	if q.quic[i].Key.IsZero() || length == aesBlockSize {
		return 0
	}
	return length - (length+1)/2
}

// check runs one packet and compares.
func (q quicTwin) check(t *testing.T, d *testDirector, payload []byte) {
	t.Helper()
	backend, event := q.ask(payload)
	before := d.quicCounts(t)
	_, out := d.run(t, build(ip(q.client, q.vip), l4(model.UDP, clientPort, servicePort), packet.Bytes(payload)), 0)
	for i, n := range d.quicCounts(t) {
		if want := before[i] + truth64(abi.QuicEvent(i) == event); n != want {
			t.Errorf("%x: quic event %d counts %d, want %d (the twin has %v)", payload, i, n, want, event)
		}
	}
	if got := netip.AddrFrom4([4]byte(out[14+16 : 14+20])); got != q.backends[backend].address {
		t.Errorf("%x: sent to %v, want backend %d, %v (the twin has %v)", payload, got, backend, q.backends[backend].address, event)
	}
}

func truth64(b bool) uint64 { return uint64(truth(b)) }

// quicCounts are the events, over all CPUs.
func (d *testDirector) quicCounts(t testing.TB) (counts []uint64) {
	t.Helper()
	m := d.Maps[directorMapQuicEvents]
	for i := range m.MaxEntries() {
		var perCPU []uint64
		if err := m.Lookup(i, &perCPU); err != nil {
			t.Fatalf("read QUIC event %d: %v", i, err)
		}
		sum := uint64(0)
		for _, n := range perCPU {
			sum += n
		}
		counts = append(counts, sum)
	}
	return counts
}

// quicSeeds are packets that name each backend and nobody, in each configuration.
func (q quicTwin) quicSeeds(t testing.TB) (payloads [][]byte) {
	t.Helper()
	for _, c := range q.quic {
		unknown := []byte(q.backends[0].serverID[c.ID])
		unknown[0]++
		ids := [][]byte{unknown}
		for _, b := range q.backends {
			ids = append(ids, []byte(b.serverID[c.ID]))
		}
		for _, id := range ids {
			cid, err := q.codecs[c.ID].Encode(id, []byte("nonce nonce nonce")[:c.NonceLength])
			if err != nil {
				t.Fatal(err)
			}
			payloads = append(payloads, quicPayload(true, cid), quicPayload(false, cid))
		}
	}
	return payloads
}

// Whatever comes to a service with quic, the program and its twin agree: packets that
// name a backend, and the same with some bytes changed or cut off.
func testQUICTwin(t *testing.T) {
	w := &testWorld{}
	q := newQUICTwin(t, w.quicMixed())
	seeds := q.quicSeeds(t)
	d := loadTestDirector(t, w)
	for _, payload := range seeds {
		q.check(t, d, payload)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for range rounds(8000) {
		payload := slices.Clone(seeds[r.IntN(len(seeds))])
		for range r.IntN(3) {
			at := r.IntN(min(len(payload), 30))
			payload[at] = []byte{0, 0xff, byte(r.Uint32()), payload[at] + 1, payload[at] ^ 1<<r.IntN(8)}[r.IntN(5)]
		}
		if r.IntN(3) == 0 {
			payload = payload[:r.IntN(len(payload)+1)]
		}
		if q.check(t, d, payload); t.Failed() {
			return
		}
	}
}

// FuzzQUIC lets the fuzzer look for a packet about which the program and its twin
// disagree.
func FuzzQUIC(f *testing.F) {
	w := &testWorld{}
	q := newQUICTwin(f, w.quicMixed())
	for _, payload := range q.quicSeeds(f) {
		f.Add(payload)
	}
	d := loadTestDirector(f, w)
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) <= 1300 {
			q.check(t, d, payload)
		}
	})
}

// quicFrames are packets of a service of each algorithm, for the fuzzer.
func (w *testWorld) quicFrames(t testing.TB) (frames [][]byte) {
	q := newQUICTwin(t, w.quicMixed())
	for _, payload := range q.quicSeeds(t) {
		frames = append(frames, build(ip(q.client, q.vip), l4(model.UDP, clientPort, servicePort), packet.Bytes(payload)))
	}
	return frames
}
