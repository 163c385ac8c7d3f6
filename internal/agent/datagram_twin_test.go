package agent

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir.io/weir/lab/twin"
)

// TestDatagramTwin runs random steps of datagrams through the programs and the twin.
func TestDatagramTwin(t *testing.T) {
	r := newSecond(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		r.serveDatagrams(t, vip)
	}
	random := rand.New(rand.NewPCG(1, 2))
	host := twin.Host{Addresses: map[netip.Addr]bool{host4: true, host6: true}}
	seen := map[bpfHostReason]int{}
	for i := range 800 {
		o := outers()[random.IntN(4)]
		s := randomStep(random, o, time.Duration(monotonic(t)))
		s.name = fmt.Sprintf("step %d, %+v, %v ago, begun: %v, from %v", i, s.in, s.age, s.begun, s.from)
		f := r.talk([]netip.Addr{vip4, vip6}[random.IntN(2)])
		f.sctp = random.IntN(2) == 0
		keeps, known, to, row := host.Walk(twin.Datagram{From: s.from, To: o.to, Age: s.age, Serves: true, Row: s.in.twin(),
			Asks: func(h netip.Addr) bool { return s.asked[h].Open == 0 }})
		switch {
		case !keeps:
			s.reason, s.to, s.out = bpfHostReasonHOST_PASSED_ON, to, walkedAs(row)
		case known:
			s.reason = bpfHostReasonHOST_DECAP_GUE
		default:
			s.reason = bpfHostReasonHOST_DECAP_NEW_FLOW
		}
		seen[s.reason]++
		r.walk(t, o, f, f.datagram(), s)
	}
	if len(seen) != 3 {
		t.Errorf("the steps end in %v only", seen)
	}
}

// randomStep is what a host may get, from hosts that do as they should or do not. The kernel has
// run for so long: nothing is older.
func randomStep(r *rand.Rand, o rowTunnel, up time.Duration) step {
	ages := []time.Duration{unknown, unknown, 0, old, 40 * time.Second, 100 * time.Second, 320 * time.Second}
	ages = slices.DeleteFunc(ages, func(age time.Duration) bool { return age > up })
	s := step{age: ages[r.IntN(len(ages))], begun: r.IntN(2) == 0, from: o.from}
	all := []netip.Addr{o.to, o.hops[0], o.hops[1]}
	for range 1 + r.IntN(5) {
		s.in.hops = append(s.in.hops, all[r.IntN(3)])
	}
	n := len(s.in.hops)
	s.in.down, s.in.next = r.IntN(n+1), r.IntN(n+2)
	if s.in.next > 0 {
		s.from = o.hops[r.IntN(2)]
		s.in.claim = []int{0, 0, 1, 5, 20, 254, 255}[r.IntN(7)]
		if s.in.next >= n-s.in.down && s.in.next <= n && r.IntN(3) == 0 {
			s.in.next |= rowReturned
		}
	}
	if r.IntN(3) == 0 {
		s.asked = map[netip.Addr]bpfHostQuestion{o.hops[r.IntN(2)]: {Since: uint64(time.Second), Last: uint64(time.Millisecond), Open: uint64(time.Second)}}
	}
	if s.in.next > 0 {
		delete(s.asked, s.from) // it is heard just now
	}
	return s
}

func (w walked) twin() twin.DatagramRow {
	return twin.DatagramRow{Hops: w.hops, Down: w.down, Next: w.next &^ rowReturned, Returned: w.next&rowReturned != 0, Claim: w.claim}
}

func walkedAs(row twin.DatagramRow) walked {
	w := walked{next: row.Next, down: row.Down, claim: row.Claim, hops: row.Hops}
	if row.Returned {
		w.next |= rowReturned
	}
	return w
}
