package datapath

import (
	"maps"
	"slices"
	"testing"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// choices are the places where a flow's two buckets begin, as numbers of flows, and which place in
// them is its own: snat_choose and snat_own.
func (d *testDirector) choices(t testing.TB, f model.Flow) (buckets []int, own int) {
	t.Helper()
	var layout flows.Layout
	must(t, d.snat.Lookup(uint32(0), unsafe.Slice((*byte)(unsafe.Pointer(&layout)), flows.BucketBytes)))
	for _, number := range layout.Choices(f) {
		buckets = append(buckets, int(number)-snatBucketSize)
	}
	return buckets, int(f.Hash(layout.Salt, model.AffinityFlow) >> 32 % snatBucketSize)
}

// A new flow gets its own place if that is free, and then each of its packets finds it at once:
// what a packet takes does not depend on which place that is.
func testSNATOwnPlace(t *testing.T) {
	w, s, _ := snatWorld(true)
	c := counted{T: t}
	c.load(w)
	taken, own := map[int]int{}, map[int]bool{}
	for port := uint16(clientPort); len(own) < snatBucketSize; port++ {
		f := s.flow()
		f.SourcePort = port
		buckets, place := c.choices(t, f)
		if _, used := c.flows(t)[buckets[0]+place]; used || own[place] {
			continue
		}
		s.establish(t, c.testDirector, port)
		if at, _ := s.flowOf(t, c.testDirector, port); at != buckets[0]+place {
			t.Fatalf("the flow of port %d is at %d, and its own place %d was free", port, at, buckets[0]+place)
		}
		s.says(t, c.testDirector, port, packet.ACK)
		if _, _, err := c.in.run(build(append([]packet.Header{ip(s.client, s.vip)}, s.numbered(port, servicePort, packet.ACK, false)...)...)); err != nil {
			t.Fatal(err)
		}
		own[place] = true
		taken[c.in.taken()]++
	}
	if len(taken) != 1 {
		t.Errorf("ACKs of flows at their own places take %v instructions, by the place", slices.Sorted(maps.Keys(taken)))
	}
}

// Flows are found in each place of their buckets: another one may have had their own, and versions
// before this one looked for a place from the first one on.
func testSNATEveryPlace(t *testing.T) {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	d := loadTestDirector(t, w)
	for _, s := range scenarios {
		s.establish(t, d, clientPort)
		buckets, _ := d.choices(t, s.flow())
		for _, bucket := range buckets {
			for i := range snatBucketSize {
				at, e := s.flowOf(t, d, clientPort)
				d.setFlow(t, at, abi.SnatFlow{})
				d.setFlow(t, bucket+i, e.SnatFlow)
				d.check(t, []row{s.fullForward("data", d, s.data(100)...), s.fullForward("its beginning again", d, s.opening(clientPort)...)})
				if now, _ := s.flowOf(t, d, clientPort); now != bucket+i {
					t.Errorf("%s: the flow at %d is now at %d", s.name, bucket+i, now)
				}
			}
		}
	}
}
