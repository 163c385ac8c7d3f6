package histories

import (
	"math/rand/v2"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// testResent: when a SYN is sent again after its slot's owner has changed, two hosts answer
// it. Whichever answer the client takes, by whichever director its packets go on: they come
// to the host that has given it.
func testResent(t *testing.T, l *lab) {
	h := newLife(t, l, tcp, rand.New(rand.NewPCG(43, 1)), &tally{})
	h.service.Policy, h.service.Backends, h.notice = model.Maglev, nil, 0
	change := func(drains int, backends ...int) {
		h.now = h.now.Add(time.Second)
		h.service.Backends = nil
		for i, number := range backends {
			b := model.Backend{Address: backendAddress(number, h.six), Weight: 100, State: model.Active}
			if b.Name = b.Address.String(); i < drains {
				b.State = model.Draining
			}
			h.service.Backends = append(h.service.Backends, b)
		}
		h.advance()
		for _, d := range h.directors {
			d.revision = len(h.revisions) - 1
			h.tell(d)
		}
	}
	change(0, 0, 2, 4)
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
	change(2, 0, 2, 4, 6, 8)
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
