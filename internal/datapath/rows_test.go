package datapath

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/lab/packet"
)

// XDP verdicts (linux/bpf.h).
const (
	xdpAborted = iota
	xdpDrop
	xdpPass
	xdpTX
	xdpRedirect
)

// row is one packet: what goes in and everything that must come of it. Zero
// values: XDP_PASS, the frame unchanged, nothing counted but the reason.
type row struct {
	name     string
	before   [][]byte // frames that the director saw earlier
	in       []byte
	metadata int // bytes of headroom that are taken
	reason   abi.Reason
	action   uint32
	out      []byte                                // nil: unchanged, or dropped
	late     func(t *testing.T, out []byte) []byte // what out must be, where only the program can choose it
	backend  uint32                                // its counter counts the packet, 0: none
	drops    *testService
	bytes    *uint64 // counted; nil: the length that the IP header says
}

// forwarded says that the packet left for a backend of a service.
func (r row) forwarded(reason abi.Reason, s *testService, backend int, out []byte) row {
	r.reason, r.action, r.out, r.backend = reason, xdpTX, out, s.first+uint32(backend)
	if s.backends[backend].ifindex == otherEgress {
		r.action = xdpRedirect
	}
	return r
}

// dropped says that a service's packet was dropped.
func (r row) dropped(reason abi.Reason, s *testService) row {
	r.reason, r.action, r.drops = reason, xdpDrop, s
	return r
}

// answered says that the director answered.
func (r row) answered(reason abi.Reason, out []byte) row {
	r.reason, r.action, r.out = reason, xdpTX, out
	return r
}

// passed says that the kernel got the frame as it was.
func (r row) passed(reason abi.Reason) row {
	r.reason, r.action, r.out = reason, xdpPass, nil
	return r
}

// hit remembers which reasons some row was about.
var hit struct {
	sync.Mutex
	reasons map[abi.Reason]string
}

func reached(reason abi.Reason, where string) {
	hit.Lock()
	defer hit.Unlock()
	if hit.reasons == nil {
		hit.reasons = map[abi.Reason]string{}
	}
	hit.reasons[reason] = where
}

// check runs the rows, each in a subtest of its own.
func (d *testDirector) check(t *testing.T, rows []row) {
	t.Helper()
	all, last := d.readAll(t), d.read(t)
	for _, r := range rows {
		if d.tunnels != nil {
			if r.reason == abi.ReasonPASS_REPLY_UNROUTED || strings.Contains(r.name, "another segment") {
				continue // the host's routes lead to no client in a tenant's network, and packets come in that one alone
			}
			r = d.inside(r)
		}
		t.Run(r.name, func(t *testing.T) {
			for _, frame := range r.before {
				d.run(t, frame, 0)
				last = d.read(t)
			}
			action, out := d.run(t, r.in, r.metadata)
			now := d.read(t)
			got := now.since(last)
			last = now

			if want := r.counts(); got.String() != want.String() {
				t.Errorf("counted %s\nwant    %s", got, want)
			}
			if action != r.action {
				t.Errorf("verdict %d, want %d\n%s", action, r.action, packet.Describe(r.in))
			}
			if r.action != xdpDrop {
				r.checkOut(t, out)
			}
			if !t.Failed() {
				reached(r.reason, t.Name())
			}
		})
	}
	if got := d.readAll(t).without(last).since(all.without(last)); len(got) > 0 {
		t.Errorf("counted for what is in no table: %s", got)
	}
}

func (r row) checkOut(t *testing.T, out []byte) {
	t.Helper()
	want := r.out
	if r.late != nil {
		want = r.late(t, out)
	}
	if want == nil {
		packet.Equal(t, out, r.in)
		return
	}
	packet.Equal(t, out, want)
	if err := packet.VerifyChecksums(out); err != nil {
		t.Errorf("packet out: %v\n%s", err, packet.Describe(out))
	}
}

// counts is the whole change of all counters that the row says.
func (r row) counts() counts {
	one := abi.Counter{Packets: 1, Bytes: ipLength(r.in)}
	if r.bytes != nil {
		one.Bytes = *r.bytes
	}
	c := counts{reasonName(r.reason): one}
	if r.backend != 0 {
		c[fmt.Sprintf("backend %d", r.backend)] = one
	}
	if r.drops != nil {
		c[fmt.Sprintf("drops of service %d", r.drops.index)] = one
	}
	return c
}

// ipLength is what the IP header of a frame says; 0: there is none.
func ipLength(frame []byte) uint64 {
	at := 12
	for at+6 <= len(frame) {
		switch binary.BigEndian.Uint16(frame[at:]) {
		case packet.EtherTypeVLAN, packet.EtherTypeQinQ:
			at += 4
			continue
		case packet.EtherTypeIPv4:
			return uint64(binary.BigEndian.Uint16(frame[at+4:]))
		case packet.EtherTypeIPv6:
			if at+8 <= len(frame) {
				return uint64(binary.BigEndian.Uint16(frame[at+6:])) + 40
			}
		}
		return 0
	}
	return 0
}

// reasonNames are those of enum reason, from the program's own BTF.
var reasonNames = sync.OnceValue(func() map[abi.Reason]string {
	spec, err := loadDirector()
	if err != nil {
		panic(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("reason", &enum); err != nil {
		panic(err)
	}
	names := map[abi.Reason]string{}
	for _, v := range enum.Values {
		if v.Name != "REASON_COUNT" {
			names[abi.Reason(v.Value)] = v.Name
		}
	}
	return names
})

func reasonName(r abi.Reason) string { return reasonNames()[r] }
