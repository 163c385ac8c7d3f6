package datapath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// instructionsFile has how many BPF instructions each packet takes. The compiled program is in the
// repository, so they are the same everywhere.
const instructionsFile = "testdata/instructions.txt"

// mostInstructions is the most that an ACK in l2dsr may take, whatever the table says.
const mostInstructions = 240

// Variables and no flags, because the test runs itself again in a namespace: the first has the
// table written as it is now, the second names a packet whose instructions are listed by line.
const updateInstructions, listInstructions = "WEIR_UPDATE_INSTRUCTIONS", "WEIR_LIST_INSTRUCTIONS"

// counted are the packets of one world, with what the interpreter takes for them.
type counted struct {
	*testing.T
	*testDirector
	in    *interpreter
	lines []string
}

// TestInstructions compares what packets take with the table. What they do is compared with the
// kernel's run of the same program.
func TestInstructions(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	routeReplies(t)
	c := counted{T: t}
	c.usual()
	c.otherRings()
	c.handedOver()
	c.remembered()
	c.begun()
	c.steered()
	c.inSegments()
	if os.Getenv(updateInstructions) != "" {
		must(t, os.WriteFile(instructionsFile, []byte(strings.Join(c.lines, "\n")+"\n"), 0o644))
	}
	table, err := os.ReadFile(instructionsFile)
	must(t, err)
	want := strings.Split(strings.TrimSpace(string(table)), "\n")
	for i := range max(len(c.lines), len(want)) {
		now, before := at(c.lines, i), strings.TrimSpace(at(want, i))
		if strings.TrimSpace(now) != before {
			t.Errorf("%q was %q in line %d of %s (%s=1 writes it anew)", now, before, i+1, instructionsFile, updateInstructions)
		}
	}
}

// at is a line of a list; empty: the list has fewer.
func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// load loads a world whose services are all in the front.
func (c *counted) load(w *testWorld) {
	c.Helper()
	c.testDirector = loadTestDirector(c, w)
	for _, s := range w.services {
		c.putFront(c, s)
	}
	spec, err := loadPrograms()
	must(c, err)
	c.in, err = newInterpreter(spec.Programs["director"], c.Maps, c.clock)
	must(c, err)
}

// usual are the modes, with the packets that most are; and in l2dsr what makes a packet take more.
func (c *counted) usual() {
	w := &testWorld{}
	scenarios := w.scenarios(func(wayTo) bool { return true })
	c.load(w)
	for _, s := range scenarios {
		kinds := map[string]uint8{"datagram": 0}
		if s.protocol == model.TCP {
			kinds = map[string]uint8{"SYN": packet.SYN, "ACK": packet.ACK}
		}
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if s.backends[0].snat && kind != "SYN" {
				s.establish(c, c.testDirector, clientPort)
			}
			headers := func(client netip.Addr) []packet.Header {
				return append([]packet.Header{ip(client, s.vip)}, s.numbered(clientPort, servicePort, kinds[kind], false)...)
			}
			taken := c.count(s.name+", "+kind, headers(s.client)...)
			if s.backends[0].mode != model.L2DSR || kind == "SYN" {
				continue
			}
			if s.vip.Is4() && kind == "ACK" && taken > mostInstructions {
				c.Errorf("an ACK in l2dsr takes %d instructions, and %d are the most", taken, mostInstructions)
			}
			c.count(s.name+", "+kind+" with a tag", append([]packet.Header{packet.VLANTag{}}, headers(s.client)...)...)
			c.count(s.name+", "+kind+" of a source in the filter", headers(c.filtered(s))...)
			c.clearFront(s.testService)
			c.count(s.name+", "+kind+" of a service behind the front", headers(s.client)...)
			c.putFront(c, s.testService)
		}
	}
}

// otherRings are packets of services whose ring is chosen by more than its slots.
func (c *counted) otherRings() {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR || way.mode == model.GUE && way.over4 })
	what := map[model.Mode]string{model.L2DSR: "affinity source-ip", model.GUE: "p2c"}
	for _, s := range scenarios {
		if s.backends[0].mode == model.L2DSR {
			s.testService.affinity = model.AffinitySourceIP
		} else {
			s.testService.policy = model.P2C
		}
	}
	c.load(w)
	for _, s := range scenarios {
		if s.protocol == model.TCP {
			headers := append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, packet.ACK, false)...)
			c.count(s.name+", ACK with "+what[s.backends[0].mode], headers...)
		}
	}
	c.limited()
}

// limited are packets of a segment that has so many in a second.
func (c *counted) limited() {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	for _, s := range scenarios {
		s.testService.quota = 1
	}
	c.load(w)
	c.put(c, "quotas", uint32(1), abi.Quota{Packets: 1 << 30, Batch: 64})
	for _, s := range scenarios {
		if s.protocol == model.TCP {
			headers := append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, packet.ACK, false)...)
			c.count(s.name+", ACK in a segment with a limit", headers...)
		}
	}
}

// handedOver are SYNs that ask to be redirected.
func (c *counted) handedOver() {
	w := &testWorld{}
	scenarios := w.redirecting()
	c.load(w)
	for _, s := range scenarios {
		if s.backends[0].mode == model.L2DSR {
			_, family, _ := strings.Cut(s.name, ", ")
			c.count("redirect, "+family+", SYN", ip(s.client, s.vip), syn(asking(linuxSYN...)))
		}
	}
}

// remembered are packets of slots that ask for flow memory.
func (c *counted) remembered() {
	w := &testWorld{}
	scenarios := w.scenarios(func(way wayTo) bool { return way.mode == model.L2DSR })
	for _, s := range scenarios {
		s.testService.memory, s.testService.settling = true, true
	}
	c.load(w)
	onCPU(c, 0, func() {
		for _, s := range scenarios {
			if s.protocol != model.TCP {
				continue
			}
			headers := append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, packet.ACK, false)...)
			for range 2 {
				c.testDirector.run(c, build(headers...), 0)
			}
			c.count(s.name+", ACK in flow memory", headers...)
			s.remembered(c, c.testDirector)[clientPort].State = uint8(abi.FlowStateFLOW_ESTABLISHED)
			c.count(s.name+", ACK of a sustained flow in flow memory", headers...)
			c.count(s.name+", SYN of a new flow in flow memory", append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort+1, servicePort, packet.SYN, false)...)...)
		}
	})
}

// begun are packets that begin flows of full NAT, beside another service and some flows of its own.
func (c *counted) begun() {
	w := &testWorld{}
	scenarios := w.scenarios(isFullNAT)
	w.settings.SnatShare = snatBucketSize - 1
	c.load(w)
	for _, s := range scenarios {
		for i := range uint16(snatBucketSize) {
			c.testDirector.run(c, build(s.opening(clientPort+1+i)...), 0)
		}
		c.count(s.name+", first packet", s.opening(clientPort)...)
	}
}

// count adds a line for a packet that comes in, and returns the instructions that it takes.
func (c *counted) count(name string, headers ...packet.Header) int {
	c.Helper()
	return c.countFrame(name, packet.Build(append([]packet.Header{packet.EthernetHeader{Dst: egressMAC, Src: clientMAC}}, headers...)...))
}

func (c *counted) countFrame(name string, frame []byte) int {
	c.Helper()
	verdict, out, err := c.in.run(frame)
	if err != nil {
		c.Fatalf("%s: %v", name, err)
	}
	action, want := c.testDirector.run(c, frame, 0)
	if verdict != action || action != xdpTX || !bytes.Equal(out, want) {
		c.Errorf("%s: the interpreter's verdict is %d, the kernel's %d: %s", name, verdict, action, packet.Diff(out, want))
	}
	if os.Getenv(listInstructions) == name {
		lines := c.in.lines()
		for _, line := range slices.SortedFunc(maps.Keys(lines), func(a, b string) int { return lines[b] - lines[a] }) {
			c.Logf("%4d %s", lines[line], line)
		}
	}
	c.lines = append(c.lines, fmt.Sprintf("%4d %s", c.in.taken(), name))
	return c.in.taken()
}

// steered are packets of hosts whose NICs steer flows: of a flow that has a rule, and of a queue to which
// none leads.
func (c *counted) steered() {
	w, scenarios := steeredWorld(c)
	c.load(w)
	spec, err := loadPrograms()
	must(c, err)
	c.in, err = newInterpreter(spec.Programs["director_steering"], c.Maps, c.clock)
	must(c, err)
	c.onQueue(c, steeredQueue)
	for _, s := range scenarios {
		flags := uint8(0)
		if s.protocol == model.TCP {
			flags = packet.ACK
		}
		headers := append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, flags, false)...)
		c.in.link, c.in.queue = c.link, c.queue
		s.steer(c, c.testDirector, 0)
		c.count(s.name+", steered", headers...)
		if s.backends[0].mode == model.L2DSR {
			c.put(c, "steered_queues", c.place()+c.queue, abi.SteeredQueue{})
			c.count(s.name+", of a queue without rules", headers...)
		}
	}
}

// inSegments are packets of a director that is a VTEP: in tunnels, where this CPU has seen their senders before, and
// in none.
func (c *counted) inSegments() {
	defer func() { inTunnels = nil }()
	for _, of := range []struct {
		name  string
		world tunnelWorld
	}{
		{"vxlan", tunnelWorld{kind: model.SegmentVXLAN, front: true}},
		{"vxlan over 6", tunnelWorld{kind: model.SegmentVXLAN, six: true, front: true}},
		{"geneve", tunnelWorld{kind: model.SegmentGeneve, front: true}},
		{"geneve with OVN's options", tunnelWorld{kind: model.SegmentGeneve, options: ovnOptions, front: true}},
		{"none, of a VTEP", tunnelWorld{kind: model.SegmentVXLAN, front: true, from: &model.Segment{}}},
	} {
		inTunnels = &of.world
		w := &testWorld{}
		scenarios := w.scenarios(func(way wayTo) bool {
			return way.mode == model.L2DSR || way.mode == model.NAT && !way.snat && of.world.from == nil
		})
		c.testDirector = loadInside(c, w)
		spec, err := loadPrograms()
		must(c, err)
		must(c, Options{VTEP: model.VTEP{Addresses: []netip.Addr{vtepAddress4}}}.addVTEP(spec))
		c.in, err = newInterpreter(spec.Programs["director"], c.Maps, c.clock)
		must(c, err)
		for _, s := range scenarios {
			if s.protocol != model.TCP {
				continue
			}
			headers := append([]packet.Header{ip(s.client, s.vip)}, s.numbered(clientPort, servicePort, packet.ACK, false)...)
			frame := build(headers...)
			if of.world.from == nil {
				frame = of.world.arrives(frame)
			} else {
				for i := range s.backends {
					c.put(c, "vtep_backends", s.first+uint32(i), abi.VtepBackend{})
				}
			}
			c.in.kept = map[string][]byte{}
			if _, _, err := c.in.run(frame); err != nil {
				c.Fatalf("%s: %v", s.name, err)
			}
			c.countFrame(of.name+", "+s.name+", ACK", frame)
		}
	}
}

func (c *counted) clearFront(s *testService) {
	c.Helper()
	_, place := frontOf(endpoint{s.segment.Key(), s.vip, uint8(s.protocol), s.port.First})
	c.put(c, "fronts", place, abi.Front{})
}

// filtered is a client whose address has the same bit of the filter as a backend's.
func (c *counted) filtered(s scenario) netip.Addr {
	c.Helper()
	var filter [1 << sourceFilterBits / 64]uint64
	must(c, c.Maps[abi.SourceFilter].Lookup(uint32(0), &filter))
	for a := s.client.Next(); ; a = a.Next() {
		sum, address := uint32(0), abiAddress(a)
		for at := 0; at < len(address.Bytes); at += 4 {
			sum ^= binary.LittleEndian.Uint32(address.Bytes[at:])
		}
		if bit := sum * 0x9e3779b1 >> 17; filter[bit/64]>>(bit%64)&1 != 0 {
			return a
		}
	}
}
