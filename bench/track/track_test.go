package track

import (
	"context"
	"fmt"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

// Every subject forwards every packet to its backend, on one core or two, to another network or
// back to the one it came from.
func TestEverySubjectForwards(t *testing.T) {
	t.Chdir("../..")
	way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{128}}
	for _, subject := range []Subject{Direct, Redirect, Reflect, Iptables, Nftables, Weir(model.L2DSR, false, false),
		Weir(model.IPIP, false, true), Weir(model.GUE, false, false), Weir(model.NAT, false, false)} {
		for _, o := range []Options{{OneArm: subject.Name == "reflect"}, {TwoCores: true, OneArm: subject.Name == "reflect"}, {OneArm: true}} {
			t.Run(fmt.Sprintf("%s, two cores: %t, one arm: %t", subject.Name, o.TwoCores, o.OneArm), func(t *testing.T) {
				o.Subject, o.Traffic, o.Backends = subject, way, 10
				track, err := Start(context.Background(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer track.Close()
				sample, err := track.Measure(20 * time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if sample.Received == 0 || sample.Received > sample.Sent || sample.Rate <= 0 {
					t.Errorf("measured %+v", sample)
				}
				if !o.TwoCores && sample.Received != sample.Sent {
					t.Errorf("on one core %d of %d packets were lost", sample.Sent-sample.Received, sample.Sent)
				}
			})
		}
	}
}

// Packets of tunnels come to their backends' VTEPs in the tenant's network, from one kind into the other, too, and
// those of tenants with the same addresses to their own.
func TestTunnels(t *testing.T) {
	t.Chdir("../..")
	for _, from := range []model.SegmentKind{model.SegmentVXLAN, model.SegmentGeneve} {
		for _, to := range []model.SegmentKind{model.SegmentVXLAN, model.SegmentGeneve} {
			for _, mode := range []model.Mode{model.L2DSR, model.NAT} {
				for _, six := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v to %v, %v, over IPv6: %t", from, to, mode, six), func(t *testing.T) {
						way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 3, Frames: []int{78}, IPv6: six, Overlay: InTunnels(from, six, 2)}
						track, err := Start(context.Background(), Options{Subject: Weir(mode, false, false).InOverlay(to, !six && from != to), Traffic: way, Backends: 10, OneArm: from == to, Every: true})
						if err != nil {
							t.Fatal(err)
						}
						defer track.Close()
						sample, err := track.Measure(20 * time.Millisecond)
						if err != nil {
							t.Fatal(err)
						}
						if sample.Received != sample.Sent {
							t.Errorf("on one core %d of %d packets were lost", sample.Sent-sample.Received, sample.Sent)
						}
					})
				}
			}
		}
	}
}

// Packets follow a backend to its other VTEP, and back.
func TestMoveBackend(t *testing.T) {
	way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{64}, Overlay: InTunnels(model.SegmentVXLAN, false, 1)}
	track := started(t, Options{Subject: Weir(model.L2DSR, false, false).InOverlay(model.SegmentVXLAN, false), Traffic: way, Backends: 4, OneArm: true, Moves: true})
	stream := streamed(t, track, way)
	if err := stream.While(20_000, func() error {
		for range 2 {
			if _, err := track.MoveBackend(t.Context(), 1); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	count, err := track.sink.Count()
	if err != nil || count.Moved == 0 || count.Moved == count.Backends[1] {
		t.Errorf("%d of %d packets came to the other VTEP (%v)", count.Moved, count.Backends[1], err)
	}
}
