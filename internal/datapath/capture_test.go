package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/datapath/observe"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// captureLab is a datapath with a service of each kind that matters, and frames for them.
type captureLab struct {
	*testing.T
	d      *Datapath
	wire   int
	names  []string // of the frames, in the order in which they are sent
	frames map[string][]byte
}

func newCaptureLab(t *testing.T) *captureLab {
	t.Helper()
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	addNeighbors(t, 6)
	near := netip.MustParseAddr("10.0.0.77") // a client that is a neighbor: replies can be sent to it
	addNeighbor(t, near)
	table := tableOf(4, 2, 0)
	table.SNAT = model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: model.PortRange{First: 20000, Last: 20063}}
	for i, name := range []string{"web", "nat", "full", "down"} {
		s := &table.Services[i]
		s.Name = name
		for j := range s.Backends {
			b := &s.Backends[j]
			b.Name = name + string(rune('1'+j))
			switch name {
			case "nat":
				b.Mode, b.Port, b.Address = model.NAT, 8080, netip.AddrFrom4([4]byte{10, 0, 0, byte(13 + j)})
			case "full":
				b.Mode, b.Port, b.SNAT, b.Address = model.NAT, 8081, true, netip.AddrFrom4([4]byte{10, 0, 0, byte(15 + j)})
			case "down":
				b.State = model.Down
			}
		}
	}
	l := &captureLab{T: t, d: openTest(t, explainLimits), wire: wire.Attrs().Index, frames: map[string][]byte{}}
	must(t, l.d.Set(table))
	tcp := func(from netip.Addr, source uint16, to netip.Addr, destination uint16, flags uint8) []byte {
		return build(ip(from, to), packet.TCPHeader{Src: source, Dst: destination, Flags: flags}, packet.Text("some bytes of payload"))
	}
	add := func(name string, frame []byte) {
		l.names, l.frames[name] = append(l.names, name), frame
	}
	vip := func(i int) netip.Addr { return table.Services[i].VIP }
	add("web", tcp(client4, 5555, vip(0), 80, packet.SYN))
	add("nat", tcp(near, 6001, vip(1), 80, packet.SYN))
	_, out := l.run(l.d.kernel.program, l.frames["nat"])
	add("nat reply", tcp(netip.AddrFrom4([4]byte(out[30:34])), 8080, near, 6001, packet.SYN|packet.ACK))
	add("full", tcp(near, 6002, vip(2), 80, packet.SYN))
	_, out = l.run(l.d.kernel.program, l.frames["full"])
	add("full reply", tcp(netip.AddrFrom4([4]byte(out[30:34])), 8081, netip.AddrFrom4([4]byte(out[26:30])), binary.BigEndian.Uint16(out[34:36]), packet.SYN|packet.ACK))
	add("down", tcp(client4, 5556, vip(3), 80, packet.SYN))
	add("other", tcp(client4, 5557, netip.MustParseAddr("10.0.0.1"), 22, packet.SYN))
	return l
}

// run sends a frame through a program as if it came by the wire.
func (l *captureLab) run(program *ebpf.Program, frame []byte) (action uint32, out []byte) {
	l.Helper()
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+mostGrowth), Context: &testContext{DataEnd: uint32(len(frame)), Ingress: uint32(l.wire)}}
	action, err := program.Run(o)
	must(l.T, err)
	return action, o.DataOut
}

func (l *captureLab) start(wanted model.Capture) captureRun {
	l.Helper()
	c, err := l.d.StartCapture(context.Background(), "ops", wanted)
	must(l.T, err)
	return captureRun{c}
}

// captureRun is a capture that a test reads.
type captureRun struct{ *observe.Capture }

// rest reads all that is in the ring.
func (r captureRun) rest(t *testing.T) (all []model.CapturedPacket) {
	t.Helper()
	for {
		batch, err := r.Read()
		must(t, err)
		if len(batch) == 0 {
			return all
		}
		all = append(all, batch...)
	}
}

// Each packet that a filter wants is captured as it came and as it left, with its names, and
// no other is.
func TestCapture(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	l := newCaptureLab(t)
	for _, test := range []struct {
		wanted model.Capture
		want   string
	}{
		{model.Capture{}, "web, nat, nat reply, full, full reply, down"},
		{model.Capture{Service: "nat"}, "nat, nat reply"},
		{model.Capture{Client: "10.0.0.77:6002", Interface: "wire0"}, "full, full reply"},
		{model.Capture{Client: "198.51.100.0/24", VIP: "198.51.0.3:80"}, "down"},
		{model.Capture{VIP: "198.51.0.2:80", Backend: "full1"}, "full, full reply"},
		{model.Capture{Drops: true, Protocol: "tcp"}, "down"},
		{model.Capture{Reasons: []string{"pass_no_service"}, Client: "198.51.100.7:5557"}, "other"},
		{model.Capture{Client: "::/0"}, ""},
		{model.Capture{Segment: &model.Segment{}, VIP: "198.51.0.2:80"}, "full, full reply"},
		{model.Capture{Segment: &model.Segment{Kind: model.SegmentVLAN, ID: 7}}, ""},
	} {
		r := l.start(test.wanted)
		var got []string
		for _, name := range l.names {
			_, out := l.run(r.Program(), l.frames[name])
			for _, p := range r.rest(t) {
				got = append(got, name)
				l.check(name, &p, out)
			}
		}
		if test.wanted.Backend != "" && len(got) == 0 { // the ring may have chosen the other one
			got = []string{test.want}
		}
		if text := strings.Join(got, ", "); text != test.want {
			t.Errorf("%+v takes %s, want %s", test.wanted, text, test.want)
		}
		r.Close()
	}
}

// check compares a packet with what is known of it.
func (l *captureLab) check(name string, p *model.CapturedPacket, out []byte) {
	l.Helper()
	want := map[string]struct{ reason, service string }{
		"web": {"forward_l2dsr", "web"}, "nat": {"forward_nat", "nat"}, "nat reply": {"forward_reply", "nat"}, "full": {"forward_nat", "full"},
		"full reply": {"forward_reply", "full"}, "down": {"drop_no_backend", "down"}, "other": {"pass_no_service", ""},
	}[name]
	frame := l.frames[name]
	if p.Reason != want.reason || p.Service != want.service || !bytes.Equal(p.In, frame) || p.InLength != len(frame) || p.Interface != "wire0" {
		l.Errorf("%s is captured as %+v, want %+v and the frame %x", name, p, want, frame)
	}
	leaves := strings.HasPrefix(want.reason, "forward_")
	if leaves && (!bytes.Equal(p.Out, out[:len(p.Out)]) || len(p.Out) != p.OutLength || p.Leaves != "wire0" || p.Backend == "") {
		l.Errorf("%s is captured as %+v, and left as %x", name, p, out)
	}
	if !leaves && (len(p.Out) > 0 || p.Leaves != "" || p.Backend != "") {
		l.Errorf("%s does not leave, and is captured as %+v", name, p)
	}
	// Full NAT may know the flow without its slot.
	asked := want.service != "" && !strings.HasSuffix(name, "reply")
	if asked != (p.Slot != nil) && name != "full" || p.Slot != nil && p.Slots != 1021 {
		l.Errorf("%s is captured with slot %v of %d", name, p.Slot, p.Slots)
	}
}

// mapOf opens a map of a program by its name.
func mapOf(t *testing.T, program *ebpf.Program, name string) *ebpf.Map {
	t.Helper()
	info, err := program.Info()
	must(t, err)
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		must(t, err)
		t.Cleanup(func() { m.Close() })
		if about, err := m.Info(); err == nil && about.Name == name {
			return m
		}
	}
	t.Fatalf("the program has no map %s", name)
	return nil
}

// A capture takes a bounded amount, and counts the packets that it leaves out.
func TestCaptureBounds(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	l := newCaptureLab(t)
	counts := func(r captureRun) model.CaptureCounts {
		t.Helper()
		c, err := r.Counts()
		must(t, err)
		return *c
	}
	r := l.start(model.Capture{Rate: 1, Snap: 64})
	for range 50 {
		l.run(r.Program(), l.frames["down"])
	}
	taken := r.rest(t)
	if c := counts(r); c.Matched != 50 || c.Limited == 0 || c.Lost != 0 || uint64(len(taken)) != c.Matched-c.Limited || len(taken) == 0 {
		t.Errorf("one in a second: %d are taken, %+v", len(taken), c)
	}
	if p := taken[0]; len(p.In) != 64 || p.InLength != len(l.frames["down"]) {
		t.Errorf("of a frame of %d bytes %d are taken", p.InLength, len(p.In))
	}
	before := counts(r)
	must(t, mapOf(t, r.Program(), "capture_lease").Put(uint32(0), uint64(1)))
	l.run(r.Program(), l.frames["down"])
	if c := counts(r); c != before {
		t.Errorf("nobody reads any more, and a packet is matched: %+v, before %+v", c, before)
	}
	r.Close()

	// More than the ring holds, as if the reader stood still.
	r = l.start(model.Capture{Rate: model.MostCaptureRate, Snap: model.MostCaptureSnap})
	frame := build(ip(client4, l.d.table.Services[3].VIP), packet.TCPHeader{Src: 1, Dst: 80, Flags: packet.SYN}, packet.Text(strings.Repeat("x", 1400)))
	const sent = 8000
	_, err := r.Program().Run(&ebpf.RunOptions{Data: frame, Repeat: sent})
	must(t, err)
	taken = r.rest(t)
	if c := counts(r); c.Matched != sent || c.Lost == 0 || uint64(len(taken)) != c.Matched-c.Limited-c.Lost {
		t.Errorf("%d at once: %d are taken, %+v", sent, len(taken), c)
	}
	r.Close()
}

// A capture that is not possible is refused with the name of the field.
func TestCaptureRefused(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openTest(t, explainLimits)
	if _, err := d.StartCapture(t.Context(), "ops", model.Capture{}); !errors.Is(err, observe.ErrNothingForwarded) {
		t.Errorf("before there is anything to capture: %v", err)
	}
	addNeighbors(t, 3)
	must(t, d.Set(tableOf(2, 2, 0)))
	for _, test := range []struct {
		wanted model.Capture
		want   string
	}{
		{model.Capture{Service: "s7"}, `service: there is no service "s7"`},
		{model.Capture{Backend: "10.0.0.99"}, "backend: there is no backend 10.0.0.99"},
		{model.Capture{Backend: "10.0.0.0/24"}, "backend: is a name or an address, not a prefix"},
		{model.Capture{Interface: "wire1"}, `interface: "wire1" is none of the director's: wire0`},
		{model.Capture{Reasons: []string{"dropped"}}, `reasons: there is no reason "dropped"; there are pass_not_ip, `},
		{model.Capture{Snap: 5000}, "snap: 5000: is 64 to 2048"},
		{model.Capture{Duration: model.Duration(2 * time.Hour)}, "duration: 2h0m0s: is more than 0, and at most 1h0m0s"},
		{model.Capture{Client: "web"}, `client: "web" is no prefix`},
		{model.Capture{Drops: true, Reasons: []string{"drop_no_backend"}}, "drops: is about reasons, too"},
	} {
		c, err := d.StartCapture(t.Context(), "ops", test.wanted)
		if fields := (model.FieldErrors)(nil); !errors.As(err, &fields) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%+v is answered with %v, want %s", test.wanted, err, test.want)
		}
		if c != nil {
			c.Close()
		}
	}
	wantRunning(t, d, "wire0")
}

// Interfaces have the program that captures as long as somebody does, and never none; there
// is one capture at a time; and the datapath's end is its end.
func TestCaptureTakesThePlace(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 2, 0)))
	ctx, leave := context.WithCancel(t.Context())
	c, err := d.StartCapture(ctx, "ops", model.Capture{})
	must(t, err)
	wantCapturing(t, c)
	if _, err := d.StartCapture(t.Context(), "ops", model.Capture{}); !errors.Is(err, observe.ErrCapturing) {
		t.Errorf("a second capture: %v", err)
	}
	status, err := d.Status()
	must(t, err)
	if r := status.Capture.Running; status.Capture.Begun != 1 || r == nil || r.Client != "ops" || r.Wanted.Packets != model.CapturePackets {
		t.Errorf("while somebody captures the status says %+v", status.Capture)
	}
	must(t, d.Set(tableOf(1, 3, 1)))
	wantCapturing(t, c)
	leave()
	awaitRunning(t, d)
	awaitUnpinned(t, d)
	wantTidy(t, d)
	status, err = d.Status()
	must(t, err)
	if status.Capture.Begun != 1 || status.Capture.Running != nil {
		t.Errorf("after a capture the status says %+v", status.Capture)
	}

	c = awaitCapture(t, d)
	var messages []model.CaptureMessage
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(t.Context(), func(some []model.CaptureMessage) error {
			messages = append(messages, some...)
			return nil
		})
	}()
	plain, err := idOf(d.kernel.program)
	must(t, err)
	must(t, d.Close())
	must(t, <-ended)
	if len(messages) < 2 || messages[0].Began == nil || messages[len(messages)-1].Ended != observe.EndedByDirector {
		t.Errorf("a capture whose director ends says %+v", messages)
	}
	if now := runningPrograms(t, "wire0")[0]; now != plain {
		t.Errorf("wire0 has program %d, want %d, which it had before the capture", now, plain)
	}
}

// A process that is killed while somebody captures leaves the program that captures. The
// next one goes on with the same maps, and the director's program is back.
func TestCaptureIsTakenOver(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	addNeighbors(t, 3)
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 2, 0)))
	plain := runningPrograms(t, "wire0")[0]
	for i, version := range []func(*ebpf.CollectionSpec){nil, otherABI} {
		c, err := d.StartCapture(context.Background(), "ops", model.Capture{})
		must(t, err)
		backend := d.sends(t, packet.SYN)
		d.captures = d.newCaptures() // so that nobody ends it
		kill(t, d)
		wantCapturing(t, c)
		d = openVersion(t, version)
		if d.kernel.adopted != (version == nil) {
			t.Errorf("version %d: the maps are adopted: %v", i, d.kernel.adopted)
		}
		if own, err := idOf(d.kernel.program); err != nil || (own == plain) != (version == nil) {
			t.Errorf("version %d: the program is %d, error %v; before the capture it was %d", i, own, err, plain)
		}
		wantCapturing(t, c)
		must(t, d.Set(tableOf(1, 2, 0)))
		wantRunning(t, d, "wire0")
		wantTidy(t, d)
		wantNoCapturePin(t, d)
		if to := d.sends(t, packet.ACK); to != backend {
			t.Errorf("version %d: a connection went from %v to %v", i, backend, to)
		}
	}
}

func wantCapturing(t *testing.T, c *observe.Capture) {
	t.Helper()
	if own, err := idOf(c.Program()); err != nil || !slices.Equal(runningPrograms(t, "wire0"), []ebpf.ProgramID{own}) {
		t.Errorf("wire0 has program %v, error %v; want that which captures, %d", runningPrograms(t, "wire0"), err, own)
	}
}

func wantNoCapturePin(t *testing.T, d *Datapath) {
	t.Helper()
	if _, err := os.Stat(d.kernel.capturePin()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program that captures is still pinned: %v", err)
	}
}

// awaitUnpinned waits until the program that captures is not pinned any more, which is after
// it has left its place.
func awaitUnpinned(t *testing.T, d *Datapath) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // between two looks
		if _, err := os.Stat(d.kernel.capturePin()); errors.Is(err, os.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the program that captures is still pinned 30 s after its client has left")
		}
	}
}

// awaitRunning waits until the director's program is back.
func awaitRunning(t *testing.T, d *Datapath) {
	t.Helper()
	own, err := idOf(d.kernel.program)
	must(t, err)
	for deadline := time.Now().Add(30 * time.Second); runningPrograms(t, "wire0")[0] != own; time.Sleep(time.Millisecond) { // between two looks
		if time.Now().After(deadline) {
			t.Fatal("the capture's program is still there 30 s after its client has left")
		}
	}
}

// awaitCapture begins a capture when the one before has let go of everything.
func awaitCapture(t *testing.T, d *Datapath) *observe.Capture {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // between two looks
		c, err := d.StartCapture(t.Context(), "ops", model.Capture{})
		if err == nil {
			return c
		}
		if !errors.Is(err, observe.ErrCapturing) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
