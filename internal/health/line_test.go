package health

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"weir.io/weir/internal/model"
)

// in puts a check into a tenant's network.
func in(vlan uint32, check model.Check) model.Check {
	check.Target.Service.Segment = model.Segment{Kind: model.SegmentVLAN, ID: vlan}
	return check
}

// A tenant whose backends hold their probes until a long timeout keeps no other tenant's from being made.
func TestTenantsShareProbes(t *testing.T) {
	silent, server := silentPort(t), newTap(t)
	for _, kind := range []model.CheckKind{model.CheckTCP, model.CheckHTTP} {
		c := newChecker(t, Direct{})
		c.most = 16
		var checks []model.Check
		for i := range 200 {
			checks = append(checks, in(7, checkOf(i, silent, func(h *model.HealthCheck) { h.Kind, h.Timeout = kind, model.Duration(time.Minute) })))
		}
		c.Set(checks)
		running := func() int { c.mu.Lock(); defer c.mu.Unlock(); return c.running }
		await(t, "one tenant has all probes that it may have", func() bool { return running() == 8 })

		other := in(8, checkOf(1000, server.address, nil))
		c.Set(append(checks, other))
		c.awaitState(t, other, model.HealthUp)
		await(t, "the other one is probed again and again", func() bool { return c.Probes()[0].Count > 20 })
		await(t, "the first one's delay is told", func() bool { return len(c.Late()) == 1 })
		if late := c.Late(); late[0].Segment.ID != 7 || late[0].By < lateBy {
			t.Errorf("late are %+v, want vlan:7", late)
		}
		if n := running(); n > 9 {
			t.Errorf("%d probes are under way, of which one tenant may have 8", n)
		}
		c.Set(nil)
		await(t, "no probe is under way", func() bool { return running() == 0 })
		if len(c.lines.order) > 0 || len(c.lines.of) > 0 {
			t.Errorf("without checks there are the lines %+v", c.lines)
		}
	}
}

// Places are given in turn, and some stay free.
func TestLines(t *testing.T) {
	now := time.Now()
	s := lines{of: map[lineKey]*line{}}
	add := func(vlan uint32, targets int) {
		id := model.Segment{}
		if vlan > 0 {
			id = model.Segment{Kind: model.SegmentVLAN, ID: vlan}
		}
		for range targets {
			l := s.join(lineKey{segment: id})
			l.queue.add(&target{place: waitsNot, line: l, due: now})
		}
	}
	begun := func(free int) string {
		s.due(now.Add(early), free, func(*line, *target) {})
		var running []string
		for _, l := range s.order {
			running = append(running, fmt.Sprintf("%s %d", l.segment, l.running))
		}
		return strings.Join(running, ", ")
	}
	add(0, 100)
	if got := begun(20); got != "none 20" {
		t.Errorf("what is in no tenant's network has %s while it is alone", got)
	}
	s.order[0].running = 0
	add(1, 100)
	add(2, 3)
	if got := begun(20); got != "none 6, vlan:1 6, vlan:2 3" {
		t.Errorf("three share 20 probes as %s", got)
	}
	if _, held := s.wait(now, 5); !held {
		t.Error("nothing waits for the end of a probe")
	}
	s.order[0].running-- // a probe ends
	if got := begun(6); got != "none 6, vlan:1 6, vlan:2 3" {
		t.Errorf("after one has ended they share them as %s", got)
	}
}

// New backends of a tenant are probed for the first time without waiting for all of another one's.
func TestFirstProbesAreInTurn(t *testing.T) {
	one, other := &line{}, &line{}
	var targets []*target
	for range 50 {
		targets = append(targets, &target{line: one})
	}
	targets = append(targets, &target{line: other}, &target{line: other})
	if got := inTurn(targets); got[1].line != other || got[3].line != other {
		t.Error("two backends of one tenant wait for all 50 of another")
	}
}

// What a backend answers takes only so much memory, and time of the director's CPU.
func TestHostileAnswersEnd(t *testing.T) {
	from, s := newLab(t)
	l := s.listen("10.0.0.2:50051")
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return stream.SendMsg(make([]byte, 1<<20))
	}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	found := probing{how: model.HealthCheck{Kind: model.CheckGRPC}, to: l.Addr().String()}.from(t, from, patience)
	checkFailure(t, found, Malformed, "larger than max")

	var flood net.PacketConn
	if err := s.host.Do(func() (err error) { flood, err = net.ListenPacket("udp", "10.0.0.2:53"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { flood.Close() })
	go func() {
		buffer := make([]byte, 512)
		_, to, err := flood.ReadFrom(buffer)
		for err == nil { // until the test ends: the probe has to end before
			_, err = flood.WriteTo([]byte("x"), to)
			if err != nil && strings.Contains(err.Error(), "refused") {
				err = nil
			}
		}
	}()
	found = probing{how: model.HealthCheck{Kind: model.CheckDNS, DNS: &model.HealthDNS{Name: "example.org"}}, protocol: model.UDP,
		to: flood.LocalAddr().String()}.from(t, from, patience)
	checkFailure(t, found, Malformed, "none of them answers")
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Name() string                  { return "proto" }
