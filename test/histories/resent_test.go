package histories

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// replace gives the service these backends, of which the first ones drain, and tells all directors.
func (h *life) replace(drain int, backends ...int) {
	h.Helper()
	h.service.Backends = nil
	for i, number := range backends {
		b := model.Backend{Address: backendAddress(number, h.six), Weight: 100, State: model.Active}
		if b.Name = b.Address.String(); i < drain {
			b.State = model.Draining
		}
		h.service.Backends = append(h.service.Backends, b)
	}
	h.advance()
	h.tellAll(time.Second)
}

// tellAll tells all directors the newest revision, as it is after a while.
func (h *life) tellAll(after time.Duration) {
	h.Helper()
	h.now = h.now.Add(after)
	for _, d := range h.directors {
		d.revision = len(h.revisions) - 1
		h.update(d)
	}
}

// testResent: when a SYN is sent again after its slot's owner has changed, two hosts answer it.
// Whichever answer the client takes, and whichever director gets its packets, they reach the host
// that gave the answer.
func testResent(t *testing.T, l *lab) {
	h := newLife(t, l, tcp, rand.New(rand.NewPCG(43, 1)), &tally{})
	h.service.Policy, h.notice = model.Maglev, 0
	h.replace(0, 0, 2, 4)
	const connections = 60
	var first []*client
	for i := range connections {
		c := &client{life: h, flow: h.newFlow(), syn: h.r.Uint32()}
		c.next = c.syn + 1
		answer, answered := c.askBy(h.directors[i%len(h.directors)])
		if !answered {
			t.Fatalf("connection %d is not answered", i)
		}
		*c = answer
		first = append(first, c)
		defer c.forget()
	}
	h.replace(2, 0, 2, 4, 6, 8)
	moved := map[bool]int{} // by whether the first answer is taken
	for i, c := range first {
		again, answered := c.askBy(h.directors[i%len(h.directors)])
		if takesFirst := i%4 < 2; answered {
			if moved[takesFirst]++; !takesFirst {
				*c = again
			}
		}
		if c.establish(); c.stage != open {
			t.Fatalf("connection %d is not open with %s", i, c.host.Name)
		}
		c.talk()
	}
	if moved[true] < connections/8 || moved[false] < connections/8 {
		t.Errorf("of %d connections only %d and %d were answered by two hosts", connections, moved[true], moved[false])
	}
	t.Logf("%d connections went on with who answered first, and %d with who answered next", moved[true], moved[false])
	for _, host := range h.hosts {
		host.checkCounts(h)
	}
}

// testResentAlone: without agents nothing could tell to which of two hosts a client's packets
// belong. So a SYN that is sent again goes where it first went, if that was during the notice of
// the slot's new owner: slots remember flows from then on.
func testResentAlone(t *testing.T, l *lab) {
	h := newLife(t, l, tcp, rand.New(rand.NewPCG(44, 1)), &tally{})
	h.service.Policy, h.service.Mode, h.notice = model.Maglev, model.IPIP, 5*time.Second
	h.replace(0, 0, 2, 4)
	h.replace(2, 0, 2, 4, 6, 8)
	d := h.directors[0]
	defer onOneCPU(t)() // as RSS does with a flow
	asks := func(f model.Flow) netip.Addr {
		s := &twin.Segment{Connection: connection(f), Flags: packet.SYN, Sequence: 1}
		verdict, out := run(t, d.program, segmentFrame(s, ""))
		if verdict != xdpRedirect {
			t.Fatalf("the director's verdict on a SYN is %d", verdict)
		}
		return outerDestination(out)
	}
	const connections = 200
	flows, first := make([]model.Flow, connections), make([]netip.Addr, connections)
	for i := range flows {
		flows[i] = h.newFlow()
		first[i] = asks(flows[i])
	}
	h.tellAll(h.notice)
	moved := 0
	for i, f := range flows {
		if again := asks(f); again != first[i] {
			t.Errorf("a SYN that went to %v goes to %v when it is sent again", first[i], again)
		}
		slot := d.service.Ring.Slots[d.service.Ring.SlotOf(f.Hash(d.service.Salt, d.service.Affinity))]
		if d.service.Backends[slot.Owner].Address != first[i] {
			moved++
		}
	}
	if moved < connections/8 {
		t.Errorf("the slots of only %d of %d connections have another owner", moved, connections)
	}
}

// outerDestination is where a packet in IPIP goes.
func outerDestination(frame []byte) netip.Addr {
	if outer := frame[etherLength:]; outer[0]>>4 == 4 {
		return netip.AddrFrom4([4]byte(outer[16:]))
	}
	return netip.AddrFrom16([16]byte(frame[etherLength+24:]))
}

// onOneCPU keeps what follows on one CPU.
func onOneCPU(t *testing.T) (end func()) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	for cpu := 0; ; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	must(t, unix.SchedSetaffinity(0, &one))
	return func() {
		must(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	}
}
