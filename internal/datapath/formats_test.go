package datapath

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// TestFormatsHold: versions before the classes (bpf/lib/proof.h), and after them, have flow memory
// and full NAT's table in common. So the names of their formats, and the places of what both
// write, stay what they are.
func TestFormatsHold(t *testing.T) {
	spec, err := directorSpec(Options{Limits: smallLimits})
	must(t, err)
	flows, err := formerHash(spec, formerFlows)
	must(t, err)
	snat, err := heldHash(spec, snatPin)
	must(t, err)
	if flows != "7248a15afff91a2a" || snat != "f48e15cb1978682d" {
		t.Errorf("the formats of flow memory and full NAT's table are named %s and %s", flows, snat)
	}
	var e abi.FlowEntry
	var f abi.SnatFlow
	for _, field := range []struct {
		name     string
		at, want uintptr
	}{
		{"an entry of flow memory", unsafe.Sizeof(e), 40},
		{"its seen", unsafe.Offsetof(e.Seen), 0},
		{"its state", unsafe.Offsetof(e.State), 4},
		{"its epoch", unsafe.Offsetof(e.Epoch), 5},
		{"its turn", unsafe.Offsetof(e.Turn), 6},
		{"its backend", unsafe.Offsetof(e.Backend), 8},
		{"its service", unsafe.Offsetof(e.Service), 12},
		{"its source", unsafe.Offsetof(e.Source), 16},
		{"its source port", unsafe.Offsetof(e.SourcePort), 32},
		{"its destination port", unsafe.Offsetof(e.DestinationPort), 34},
		{"a flow of full NAT", unsafe.Sizeof(f), 64},
		{"its seen", unsafe.Offsetof(f.Seen), 0},
		{"its state", unsafe.Offsetof(f.State), 4},
		{"its FINs", unsafe.Offsetof(f.Fins), 5},
		{"its epoch", unsafe.Offsetof(f.Epoch), 6},
		{"its hash", unsafe.Offsetof(f.Hash), 8},
		{"its backend", unsafe.Offsetof(f.Backend), 12},
		{"its client", unsafe.Offsetof(f.Client), 16},
		{"its VIP", unsafe.Offsetof(f.Vip), 32},
		{"its segment", unsafe.Offsetof(f.Segment), 48},
		{"its client's port", unsafe.Offsetof(f.ClientPort), 52},
		{"its VIP's port", unsafe.Offsetof(f.VipPort), 54},
		{"what it asks for", unsafe.Offsetof(f.Asked), 56},
	} {
		if field.at != field.want {
			t.Errorf("%s is %d, want %d", field.name, field.at, field.want)
		}
	}
}

// Full NAT goes on with flows that a version without numbers has left, whatever they had come
// to, and learns their numbers.
func testSNATOfBefore(t *testing.T) {
	for state, want := range map[abi.SnatState]abi.SnatState{
		abi.SnatStateSNAT_SYN:         abi.SnatStateSNAT_ESTABLISHED, // its SYN-ACK came in time of that version
		abi.SnatStateSNAT_ESTABLISHED: abi.SnatStateSNAT_ESTABLISHED,
		abi.SnatStateSNAT_CLOSING:     abi.SnatStateSNAT_CLOSING,
	} {
		w, s, _ := snatWorld(true)
		d := loadTestDirector(t, w)
		s.says(t, d, clientPort, packet.SYN)
		at, e := s.flowOf(t, d, clientPort)
		e.State, e.Proof, e.Asked = uint8(state), 0, abi.SnatAsked{}
		if state == abi.SnatStateSNAT_CLOSING {
			e.Fins = twinBackend
		}
		d.setFlow(t, at, e.SnatFlow)
		s.says(t, d, clientPort, packet.ACK)
		s.hears(t, d, clientPort, packet.ACK)
		if got := s.state(t, d, clientPort); got != want {
			t.Errorf("state %d of before has become %d, want %d", state, got, want)
		}
		far := packet.TCPHeader{Src: clientPort, Dst: servicePort, Seq: clientISN + 1<<30, Flags: packet.RST}
		d.run(t, build(ip(s.client, s.vip), far), 0)
		if got := s.state(t, d, clientPort); got != want {
			t.Errorf("a RST of somebody who guesses has made state %d of %d", got, want)
		}
	}
}

// TestFormatsAreThoseOfPins: what weir version says of formats is in the names of what is pinned.
func TestFormatsAreThoseOfPins(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, model.Limits{})
	must(t, d.Set(tableOf(1, 2, 0)))
	formats, err := Formats(d.options.Limits)
	must(t, err)
	pinned := map[string]bool{}
	for _, path := range d.kernel.tables { // they are pinned when they are needed
		pinned[filepath.Base(path)] = true
	}
	must(t, filepath.WalkDir(d.options.Pin, func(path string, _ os.DirEntry, err error) error {
		pinned[filepath.Base(path)] = true
		return err
	}))
	for name, format := range formats {
		if !pinned[name+"-"+format] && formerMaps[name] == "" { // these are there after an upgrade
			t.Errorf("nothing is pinned as %s-%s", name, format)
		}
	}
	if len(formats) < 10 {
		t.Errorf("there are only %d formats", len(formats))
	}
}
