package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"weir.io/weir/lab/packet"
)

// TestSecondChanceHops: which host is next, and which rows are not followed.
func TestSecondChanceHops(t *testing.T) {
	r := newSecond(t)
	inner := r.flow(vip4).segment(packet.ACK, 2, 77, "data")
	up := build(frame{ether}, inner)
	for _, o := range outers() {
		many := slices.Repeat(o.hops[:1], 7)
		good := row(0, o.hops...)
		edit := func(at int, to byte) []byte {
			b := append([]byte(nil), good...)
			b[at] = to
			return b
		}
		for _, test := range []struct {
			name    string
			private []byte
			reason  bpfHostReason
			out     []byte
		}{
			{"this host has the first too", row(0, o.to, o.hops[1]), bpfHostReasonHOST_PASSED_ON, o.wrap(o.to, o.hops[1], row(2, o.to, o.hops[1]), inner)},
			{"this host has all of them", row(0, o.to, o.to), bpfHostReasonHOST_DECAP_LAST_RESORT, up},
			{"longest", row(6, many...), bpfHostReasonHOST_PASSED_ON, o.wrap(o.to, many[6], row(7, many...), inner)},
			{"longest, at its end", row(7, many...), bpfHostReasonHOST_DECAP_LAST_RESORT, up},
			{"no candidates", row(0), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"count too small", edit(1, 1), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"count too large", edit(1, 3), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"count far too large", edit(1, 255), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"next beyond count", edit(2, 3), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"next far beyond count", edit(2, 255), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"fourth byte", edit(3, 1), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"cut short", good[:len(good)-4], bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"header only", good[:4], bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
			{"longer than its count", append(append([]byte(nil), good...), 0, 0, 0, 0), bpfHostReasonHOST_DROP_ROW_MALFORMED, nil},
		} {
			t.Run(fmt.Sprintf("%s over %v, checksum %v", test.name, o.to, !o.noChecksum), func(t *testing.T) {
				r.check(t, outcome{o.wrap(o.from, o.to, test.private, inner), inner, test.reason, test.out})
			})
		}
	}
}

// TestSocketsElsewhere: where the agent cannot see the sockets, it keeps everything.
func TestSocketsElsewhere(t *testing.T) {
	r := newSecond(t)
	p := r.plan
	p.keepsAll = true
	tables, err := newTables(p, nil, nil, r.Services.MaxEntries())
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.put(&r.bpfMaps); err != nil {
		t.Fatal(err)
	}
	r.judge(t, r.flow(vip4).segment(packet.ACK, 2, 77, "data"), true)
	r.judge(t, r.flow(vip6).segment(packet.ACK, 2, 77, "data"), true)
}

// TestUnreadableSockets: where the kernel does not show its sockets, programs still
// load, and keep every packet.
func TestUnreadableSockets(t *testing.T) {
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	var options ebpf.CollectionOptions
	if err := keepAll(spec, &options); err != nil {
		t.Fatal(err)
	}
	var objects bpfObjects
	if err := spec.LoadAndAssign(&objects, &options); err != nil {
		t.Fatal(err)
	}
	defer objects.Close()
	r := newSecond(t)
	tables, err := newTables(r.plan, nil, nil, objects.Services.MaxEntries())
	if err != nil {
		t.Fatal(err)
	}
	if err := tables.put(&objects.bpfMaps); err != nil {
		t.Fatal(err)
	}
	r.bpfObjects = &objects
	r.judge(t, r.flow(vip4).segment(packet.ACK, 2, 77, "data"), true)
}

// TestPassesOn: a host that forwards nothing for anybody sends on what has no
// connection here, to the next hop's own MAC, whichever way it catches packets.
func TestPassesOn(t *testing.T) {
	for _, via := range []string{viaXDP, viaTCX, viaClsact} {
		t.Run(via, func(t *testing.T) {
			s := newStreet(t, true)
			for _, family := range []string{"ipv4", "ipv6"} {
				s.host.Sysctl("net."+family+".conf.all.forwarding", "0")
			}
			s.host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
			s.client.Address("eth0", peer4.String()+"/24", peer6.String()+"/64") // the other backend, too
			attach := AttachTC
			if via == viaXDP {
				attach = AttachXDP
			}
			a := s.agentVia(t, attach, via)
			defer s.detach(t, a)
			w := s.wire(t)
			for _, o := range outers() {
				vip := vip4
				if o.to.Is6() { // of web6 the backends have such addresses
					vip = vip6
				}
				inner := w.flow(vip).segment(packet.ACK, 2, 77, "data")
				w.passes(o.wrap(o.from, o.to, row(0, o.hops...), inner), o.wrap(o.to, o.hops[0], row(1, o.hops...), inner))
			}
			for _, c := range s.status(t, a).Reasons {
				if c.Name == "passed_on" && c.Packets < uint64(len(outers())) {
					t.Errorf("%d packets were counted as passed on, want %d or more", c.Packets, len(outers()))
				}
			}
		})
	}
}
