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
