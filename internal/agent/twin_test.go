package agent

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
	"weir.io/weir/lab/twin"
)

// fate is what must become of a probe.
type fate struct {
	reason  bpfHostReason
	service string // that counts it, by the name of testConfig or the VIP
	out     []byte
	proven  *twin.Cookie // that the host remembers from now on
}

// expect is what the twin says.
func (z *zoo) expect(p *probe) fate {
	if reason, refused := p.refused(z.host); refused {
		return fate{reason: reason}
	}
	private := p.gue.Private
	if p.gue.Flags != 0 {
		private = nil // extension fields come first, and no director sends any
	}
	row, err := twin.ReadRow(private, p.to.Is4())
	if err != nil {
		return fate{reason: bpfHostReasonHOST_DROP_ROW_MALFORMED}
	}
	z.host.Proven = p.carried.proven()
	verdict, row := z.host.Judge(p.carried.packet, row)
	if verdict == twin.PassesOn && !p.carried.mayGoTo(row.Hops[row.Next-1]) {
		return fate{reason: bpfHostReasonHOST_DROP_UNKNOWN_HOP}
	}
	if verdict == twin.PassesOn {
		return fate{reason: bpfHostReasonHOST_PASSED_ON, out: p.wrap(p.to, row.Hops[row.Next-1], row.Bytes())}
	}
	var proven *twin.Cookie
	if cookie, proves := z.host.Proves(p.carried.packet, row); proves {
		proven = &cookie
	}
	ecn := ecnTable[p.carried.tos&3][p.tos&3]
	if ecn == dropped {
		return fate{reason: bpfHostReasonHOST_DROP_CONGESTED, proven: proven}
	}
	out := p.unwrapped(p.carried.tos&^3 | ecn)
	if verdict == twin.LastResort {
		return fate{bpfHostReasonHOST_DECAP_LAST_RESORT, p.carried.service(), out, nil}
	}
	return fate{bpfHostReasonHOST_DECAP_GUE, p.carried.service(), out, proven}
}

// refused says why it does not come as far as to second chance.
func (p *probe) refused(h *twin.Host) (bpfHostReason, bool) {
	inner4 := p.carried.vip.Is4()
	peers, here := p.carried.peers()
	director := slices.ContainsFunc(testConfig().Directors, func(d netip.Prefix) bool { return d.Contains(p.from) })
	switch {
	case !h.Addresses[p.to]:
		return bpfHostReasonHOST_PASS_NOT_HERE, true
	case p.gue.Control:
		return bpfHostReasonHOST_PASS_GUE_CONTROL, true
	case p.gue.Protocol != packet.ProtocolIPv4 && p.gue.Protocol != packet.ProtocolIPv6:
		return bpfHostReasonHOST_PASS_GUE_PROTOCOL, true
	case !director && !slices.ContainsFunc(hostServices(), func(s model.Service) bool { return isPeer(s, p.from) }):
		return bpfHostReasonHOST_PASS_UNKNOWN_SOURCE, true
	case p.carried.broken || inner4 != (p.gue.Protocol == packet.ProtocolIPv4):
		return bpfHostReasonHOST_DROP_INNER_MALFORMED, true
	case !here && slices.ContainsFunc(hostServices(), func(s model.Service) bool { return s.VIP == p.carried.vip }):
		return bpfHostReasonHOST_DROP_NO_SERVICE, true
	case !here:
		return bpfHostReasonHOST_PASS_NOT_VIP, true
	case !director && !slices.Contains(peers, p.from):
		return bpfHostReasonHOST_DROP_NOT_PEER, true
	}
	return 0, false
}

// hostServices are those that have a backend on this host.
func hostServices() []model.Service {
	return slices.DeleteFunc(testConfig().Services, func(s model.Service) bool { return !isPeer(s, host4) && !isPeer(s, host6) })
}

func isPeer(s model.Service, a netip.Addr) bool {
	return slices.ContainsFunc(s.Backends, func(b model.Backend) bool { return b.Address == a })
}

// is says whether the packet is for the service, or for its VIP.
func (c *carried) is(s model.Service) bool {
	if s.VIP != c.vip || c.protocol == 0 {
		return s.VIP == c.vip
	}
	return uint8(s.Protocol) == c.protocol && (s.Port == model.PortRange{} || s.Port.First <= c.port && c.port <= s.Port.Last)
}

// peers are the backends of the services here that the packet is for.
func (c *carried) peers() (peers []netip.Addr, here bool) {
	for _, s := range hostServices() {
		if c.is(s) {
			here = true
			for _, b := range s.Backends {
				peers = append(peers, b.Address)
			}
		}
	}
	return peers, here
}

// mayGoTo says whether the packet may be sent on to a host.
func (c *carried) mayGoTo(at netip.Addr) bool {
	peers, _ := c.peers()
	return slices.Contains(peers, at) || slices.Contains(formerBackends, at)
}

func (c *carried) service() string {
	if c.protocol == 0 {
		return c.vip.String()
	}
	services := hostServices()
	return services[slices.IndexFunc(services, c.is)].Name
}

// compare runs the probe through all three programs. Its error says what differs.
func (z *zoo) compare(t *testing.T, p *probe) error {
	in, want := p.wrap(p.from, p.to, p.gue.Private), z.expect(p)
	passedOn, before := want.reason == bpfHostReasonHOST_PASSED_ON, want.reason < bpfHostReasonHOST_DECAP_IPIP
	for _, program := range []struct {
		name       string
		program    *ebpf.Program
		pass, drop uint32
		silent     bool // another program counts it
	}{
		{"xdp", z.HostXdp, xdpPass, xdpDrop, passedOn},
		{"tc", z.HostIngress, tcNext, tcShot, false},
		{"tc after xdp", z.HostAfterXdp, tcNext, tcShot, before},
	} {
		noted := z.recall(t, &p.carried)
		counted := z.counts(t)
		out := make([]byte, len(in)+256)
		options := &ebpf.RunOptions{Data: in, DataOut: out}
		verdict, err := program.program.Run(options)
		if err != nil {
			return fmt.Errorf("%s: %w", program.name, err)
		}
		if err := errors.Join(want.differs(in, options.DataOut, verdict, program.pass, program.drop, program.silent),
			z.counts(t).differ(t, counted, want, program.silent, len(in)-14), z.notes(&p.carried, noted, want.proven)); err != nil {
			return fmt.Errorf("%s: the twin says %s: %w\nrow %x\n%+v, %+v\n%s", program.name, reasonName(t, want.reason), err, p.gue.Private,
				p.carried.packet.Segment, p.carried.packet.Quote, packet.Describe(in))
		}
	}
	return nil
}

// differs says whether something else has become of the packet.
func (f fate) differs(in, out []byte, verdict, pass, drop uint32, silent bool) error {
	want, wantOut := pass, in
	switch {
	case isDrop(f.reason):
		want, wantOut = drop, out
	case silent:
	case f.reason == bpfHostReasonHOST_PASSED_ON:
		want, wantOut = tcRedirect, f.out
	case f.reason >= bpfHostReasonHOST_DECAP_IPIP:
		wantOut = f.out
	}
	if verdict != want {
		return fmt.Errorf("the verdict is %d, want %d", verdict, want)
	}
	if !bytes.Equal(out, wantOut) {
		return fmt.Errorf("another packet comes of it:\n%s", packet.Diff(out, wantOut))
	}
	return nil
}

// differ says whether something else was counted.
func (c counts) differ(t *testing.T, before counts, want fate, silent bool, length int) error {
	for i := range c.reasons {
		var one bpfCounter
		if bpfHostReason(i) == want.reason && !silent {
			one = bpfCounter{Packets: 1, Bytes: uint64(length)}
		}
		if got := minus(c.reasons[i], before.reasons[i]); got != one {
			return fmt.Errorf("%s counts %+v, want %+v", reasonName(t, bpfHostReason(i)), got, one)
		}
	}
	for name := range c.services {
		var one bpfCounter
		if name == want.service && !silent {
			one = bpfCounter{Packets: 1, Bytes: uint64(len(want.out) - 14)}
		}
		if got := minus(c.services[name], before.services[name]); got != one {
			return fmt.Errorf("service %s counts %+v, want %+v", name, got, one)
		}
	}
	return nil
}

// try sends a random packet to connections that are as the twin knows them.
func (z *zoo) try(t *testing.T, choose chooser) bpfHostReason {
	t.Helper()
	if time.Now().After(z.until) {
		z.fill(t)
	}
	p := z.probe(choose)
	var err error
	do(t, z.street.host, "compare", func() error {
		err = z.compare(t, p)
		return nil
	})
	if err != nil && time.Now().Before(z.until) {
		t.Fatal(err)
	}
	return z.expect(p).reason
}

// TestSecondChanceTwin compares the programs with the twin on random packets about
// connections in every state: verdict, packet out byte for byte, and what is counted.
func TestSecondChanceTwin(t *testing.T) {
	z := newZoo(t)
	r := rand.New(rand.NewPCG(21, 22))
	packets := 8000
	if testing.Short() {
		packets = 600
	}
	met := map[bpfHostReason]int{}
	for range packets {
		met[z.try(t, r.IntN)]++
	}
	for _, reason := range []bpfHostReason{
		bpfHostReasonHOST_PASS_NOT_HERE, bpfHostReasonHOST_PASS_GUE_CONTROL, bpfHostReasonHOST_PASS_GUE_PROTOCOL,
		bpfHostReasonHOST_PASS_UNKNOWN_SOURCE, bpfHostReasonHOST_PASS_NOT_VIP, bpfHostReasonHOST_DECAP_GUE, bpfHostReasonHOST_DECAP_LAST_RESORT,
		bpfHostReasonHOST_PASSED_ON, bpfHostReasonHOST_DROP_INNER_MALFORMED, bpfHostReasonHOST_DROP_NO_SERVICE,
		bpfHostReasonHOST_DROP_ROW_MALFORMED, bpfHostReasonHOST_DROP_NOT_PEER, bpfHostReasonHOST_DROP_CONGESTED,
		bpfHostReasonHOST_DROP_UNKNOWN_HOP,
	} {
		if met[reason] == 0 {
			t.Errorf("no packet of %d ended in %s", packets, reasonName(t, reason))
		}
	}
}

// FuzzSecondChance does the same with packets that the fuzzer makes.
func FuzzSecondChance(f *testing.F) {
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 23))
		var data []byte
		for range 64 {
			data = append(data, byte(r.Uint32()))
		}
		f.Add(data)
	}
	z := newZoo(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			z.try(t, func(n int) int {
				value := 0
				for most := n; most > 1 && len(data) > 0; most >>= 8 {
					value, data = value<<8|int(data[0]), data[1:]
				}
				return value % n
			})
		}
	})
}
