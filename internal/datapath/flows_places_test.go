package datapath

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/datapath/flows"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// twoFamilies are services of IPv4 and IPv6 as in flowWorld.
func twoFamilies() (*testWorld, [2]scenario) {
	w, four := flowWorld(model.TCP, true)
	six := *four.testService
	six.vip, six.backends = vipAddress(false, 1), nil
	for i := range four.backends {
		six.backends = append(six.backends, testBackend{mode: model.L2DSR, address: backendAddress(false, i)})
	}
	return w, [2]scenario{four, {testService: w.add(six), client: clientOf(false)}}
}

// TestPlacesOfFlows: whatever comes and goes, of IPv4 and IPv6, a flow that is sustained keeps its
// place and its backend, no flow has two places, and a line has one flow of IPv6 or up to two of IPv4.
func TestPlacesOfFlows(t *testing.T) {
	for _, share := range []uint32{flows.Ways, flows.Ways * 3 / 4} {
		testPlacesOfFlows(t, share)
	}
}

func testPlacesOfFlows(t *testing.T, share uint32) {
	w, services := twoFamilies()
	w.settings.FlowShare = share
	d := loadTestDirector(t, w)
	places, r := d.flowPlaces(t), rand.New(rand.NewPCG(1, 2))
	kept := [2]map[uint16]uint32{{}, {}}
	for step := range 6 * len(places) {
		family := r.IntN(2)
		s, port := services[family], uint16(1+step)
		before := d.flowCount(t, abi.FlowEventFLOW_INSERTED)
		s.goes(t, d, port, synFlag)
		if d.flowCount(t, abi.FlowEventFLOW_INSERTED) > before {
			place := s.remembered(t, d)[port]
			switch r.IntN(8) {
			case 0, 1, 2:
				place.State = uint8(abi.FlowStateFLOW_PROVED)
				kept[family][port] = place.Backend
			case 3:
				place.State = uint8(abi.FlowStateFLOW_FREE)
			default:
				place.Seen -= 1000
			}
		}
		if step%500 != 0 {
			continue
		}
		for family, ports := range kept {
			is := services[family].remembered(t, d)
			for port, backend := range ports {
				if is[port] == nil || is[port].Backend != backend {
					t.Fatalf("step %d: of the flow from port %d with backend %d is remembered %+v", step, port, backend, is[port])
				}
			}
		}
		wantLines(t, places, services[1])
	}
	if n := len(kept[0]) + 2*len(kept[1]); len(kept[0]) == 0 || len(kept[1]) == 0 || n > len(places) || n < len(places)*8/10 {
		t.Errorf("%d flows of IPv4 and %d of IPv6 are kept in %d places", len(kept[0]), len(kept[1]), len(places))
	}
}

// TestFewFlowsAreRefused: a table that is filled to 80 % has room for nearly all flows.
func TestFewFlowsAreRefused(t *testing.T) {
	for family := range 2 {
		w, services := twoFamilies()
		w.settings.FlowShare = flows.Ways
		d := loadTestDirector(t, w)
		places, s := d.flowPlaces(t), services[family]
		refused := d.flowCount(t, abi.FlowEventFLOW_REFUSED)
		count := len(places) * 8 / 10 / (1 + family)
		for i := range count {
			s.goes(t, d, uint16(1+i), synFlag)
		}
		if n := d.flowCount(t, abi.FlowEventFLOW_REFUSED) - refused; n > 1 || len(s.remembered(t, d)) < count-1 {
			t.Errorf("%v: %d of %d flows were refused in %d places, %d are remembered", s.vip, n, count, len(places), len(s.remembered(t, d)))
		}
	}
}

// TestFlowsOfOnePort: a client uses one port for many VIPs, as gateways of NAT do. Such flows need not
// share their places.
func TestFlowsOfOnePort(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		w, first := flowWorld(model.TCP, is4)
		w.settings.FlowShare = flows.Ways * 3 / 4
		all := []scenario{first}
		for i := 2; i <= 60; i++ {
			s := *first.testService
			s.vip, s.backends = vipAddress(is4, i), nil
			for j := range first.backends {
				s.backends = append(s.backends, testBackend{mode: model.L2DSR, address: backendAddress(is4, j)})
			}
			all = append(all, scenario{testService: w.add(s), client: first.client})
		}
		d := loadTestDirector(t, w)
		for _, s := range all {
			s.goes(t, d, clientPort, synFlag)
			s.goes(t, d, clientPort, ackFlag)
		}
		for _, s := range all {
			if s.remembered(t, d)[clientPort] == nil {
				t.Errorf("the flow to %v is not remembered", s.vip)
			}
		}
	}
}

// TestClockBegins: the jiffy in which nothing has asked for the time yet is any other's, too.
func TestClockBegins(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	d.put(t, abi.FlowClock, uint32(0), uint64(0))
	d.clock = 1 << 52 // a multiple of 2^32 of the test's jiffies
	d.put(t, clockMap, uint32(0), uint64(d.clock))
	s.goes(t, d, clientPort, synFlag)
	if place := s.remembered(t, d)[clientPort]; place == nil || place.Seen != d.now() {
		t.Errorf("the flow is remembered as %+v, and it is %d", place, d.now())
	}
}

// TestRestIsNoFlow: while the second half of a flow of IPv6 is written, the flow that was there before
// is not found there.
func TestRestIsNoFlow(t *testing.T) {
	w, s := flowWorld(model.TCP, true)
	d := loadTestDirector(t, w)
	s.goes(t, d, clientPort, synFlag)
	places, odd := d.flowPlaces(t), d.ownPlaces(s, clientPort)[0]|1
	place := *s.remembered(t, d)[clientPort]
	clear(places)
	place.State = uint8(abi.FlowStateFLOW_CLAIMED)
	places[odd], places[odd&^1] = place, place
	s.goes(t, d, clientPort, ackFlag)
	if places[odd] != place || places[odd&^1] != place {
		t.Errorf("a line that is being written became %+v and %+v", places[odd&^1], places[odd])
	}
}

// wantLines: the second place of a line is the rest of the first one's flow if that is of IPv6, and
// only then.
func wantLines(t *testing.T, places []abi.FlowPlace, six scenario) {
	t.Helper()
	for i := 0; i < len(places); i += 2 {
		rest, wide := places[i+1].State == uint8(abi.FlowStateFLOW_REST), places[i].Service == six.index
		if alive := places[i].State > uint8(abi.FlowStateFLOW_CLAIMED); rest && !wide || alive && wide && !rest {
			t.Fatalf("line %d has %+v and %+v", i/2, places[i], places[i+1])
		}
	}
}

// TestCPUsShareFlowMemory: two CPUs that get packets of the same flows, more than there are places,
// leave no flow twice, no place claimed, and every line as it should be.
func TestCPUsShareFlowMemory(t *testing.T) {
	if ebpf.MustPossibleCPU() < 2 {
		t.Fatal("needs two CPUs")
	}
	w, services := twoFamilies()
	w.settings.FlowShare = flows.Ways
	d := loadTestDirector(t, w)
	places := d.flowPlaces(t)
	var both sync.WaitGroup
	for cpu := range 2 {
		both.Go(func() {
			onCPU(t, cpu, func() {
				r := rand.New(rand.NewPCG(uint64(cpu), 3))
				for range 40 * len(places) {
					s := services[r.IntN(2)]
					flags := []uint8{synFlag, synFlag, ackFlag, rstFlag}[r.IntN(4)]
					frame := build(ip(s.client, s.vip), s.segment4(uint16(1+r.IntN(2*len(places))), servicePort, flags), packet.Text("client"))
					if _, _, err := d.program.Test(frame); err != nil {
						t.Error(err)
						return
					}
					// Time passes for some flow.
					place := (*uint64)(unsafe.Pointer(&places[r.IntN(len(places))]))
					before := atomic.LoadUint64(place)
					if state := uint8(before >> 32); state > uint8(abi.FlowStateFLOW_CLAIMED) && state != uint8(abi.FlowStateFLOW_REST) && uint32(before) > 5 {
						atomic.CompareAndSwapUint64(place, before, before-5)
					}
				}
			})
		})
	}
	both.Wait()
	wantLines(t, places, services[1])
	for _, s := range services {
		if n := len(s.remembered(t, d)); n == 0 { // remembered fails if a flow is there twice
			t.Errorf("no flow of %v is remembered", s.vip)
		}
	}
	for i := range places {
		if places[i].State == uint8(abi.FlowStateFLOW_CLAIMED) {
			t.Errorf("place %d is still claimed", i)
		}
	}
}
