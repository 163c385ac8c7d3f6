package track

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

const sampleLength = 20 * time.Millisecond

func started(t *testing.T, o Options) *Track {
	t.Helper()
	t.Chdir("../..")
	track, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { track.Close() })
	return track
}

func streamed(t *testing.T, track *Track, like traffic.Traffic) *Stream {
	t.Helper()
	stream, err := track.Stream(like)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// Each stream of a track sends its own traffic.
func TestStreams(t *testing.T) {
	way := traffic.Traffic{Protocol: model.UDP, Flows: 1000, VIPs: 2, Frames: []int{64}}
	track := started(t, Options{Subject: Redirect, Traffic: way})
	for _, frame := range []int{128, 1510} {
		few := way
		few.Flows, few.Frames = 10, []int{frame}
		sample, err := streamed(t, track, few).Measure(sampleLength)
		if err != nil {
			t.Fatal(err)
		}
		if want := sample.Received * uint64(frame-traffic.FCS); sample.Bytes != want {
			t.Errorf("%d frames of %d arrived with %d bytes, want %d", sample.Received, frame, sample.Bytes, want)
		}
	}
	for _, change := range []func(*traffic.Traffic){
		func(w *traffic.Traffic) { w.Flows++ },
		func(w *traffic.Traffic) { w.VIPs = 1 },
		func(w *traffic.Traffic) { w.Protocol = model.TCP },
		func(w *traffic.Traffic) { w.VLAN = 100 },
	} {
		other := way
		change(&other)
		if _, err := track.Stream(other); err == nil {
			t.Errorf("a track of %+v takes %+v", way, other)
		}
	}
}

// Full NAT drops packets of established flows that it does not know.
func TestOpen(t *testing.T) {
	way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{64}}
	stream := streamed(t, started(t, Options{Subject: Weir(model.NAT, true, false), Traffic: way, Backends: 10}), way)
	if _, err := stream.Measure(sampleLength); err == nil {
		t.Fatal("packets of flows that nobody began are forwarded")
	}
	if err := stream.Open(); err != nil {
		t.Fatal(err)
	}
	// A machine that does other work loses some packets, but those of unopened flows would be lost
	// each time.
	for left := 20; ; left-- {
		sample, err := stream.Measure(sampleLength)
		if err != nil {
			t.Fatal(err)
		}
		if sample.Lost() == 0 {
			return
		}
		if left == 0 {
			t.Fatalf("%d of %d packets of open flows were lost", sample.Sent-sample.Received, sample.Sent)
		}
	}
}

// DNAT knows all flows that were opened, and none after it was told to forget them. Nothing that
// the track changed for it remains.
func TestForget(t *testing.T) {
	before := read(t, conntrackMax) + read(t, conntrackBuckets)
	way := traffic.Traffic{Protocol: model.UDP, Flows: 200_000, VIPs: 1, Frames: []int{64}}
	track := started(t, Options{Subject: Iptables, Traffic: way, Backends: 10})
	stream := streamed(t, track, way)
	known := func() (flows int) {
		err := track.balancer.Do(func() (err error) {
			flows, err = strconv.Atoi(strings.TrimSpace(read(t, "/proc/sys/net/netfilter/nf_conntrack_count")))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return flows
	}
	if err := stream.Open(); err != nil {
		t.Fatal(err)
	}
	// On a busy machine packets still wait for a CPU when none has arrived for a moment.
	got := known()
	for deadline := time.Now().Add(10 * time.Second); got < way.Flows && time.Now().Before(deadline); got = known() {
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	if got < way.Flows {
		t.Errorf("%d flows are known, want %d at least", got, way.Flows)
	}
	if err := stream.Forget(); err != nil {
		t.Fatal(err)
	}
	if got := known(); got >= way.Flows {
		t.Errorf("%d flows are still known", got)
	}
	if err := track.Close(); err != nil {
		t.Fatal(err)
	}
	if after := read(t, conntrackMax) + read(t, conntrackBuckets); after != before {
		t.Errorf("the kernel's limits are %q, were %q", after, before)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSwapsPerSecond(t *testing.T) {
	var swaps Swaps
	for i := range 5 {
		if got := swaps.PerSecond(); i < 2 && !math.IsNaN(got) {
			t.Errorf("%d swaps are %g per second", i, got)
		}
		swaps.saw(time.Unix(7, int64(i)*1e8))
	}
	if got := swaps.PerSecond(); math.Abs(got-10) > 1e-6 {
		t.Errorf("5 swaps with 100 ms between them are %g per second", got)
	}
}

// While backends are swapped, packets move to the others and back, and none is lost or goes
// elsewhere.
func TestKeepSwapping(t *testing.T) {
	way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{64}}
	track := started(t, Options{Subject: Weir(model.L2DSR, false, false), Traffic: way, Backends: 30, Swaps: true})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	swapped := make(chan Swaps, 1)
	go func() {
		swaps, err := track.KeepSwapping(ctx, 100*time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		swapped <- swaps
	}()
	sample, err := track.Measure(time.Second)
	stop()
	if swaps := <-swapped; swaps.Seen < 2 || !(swaps.PerSecond() > 0) {
		t.Errorf("packets followed %d swaps in a second, %g per second", swaps.Seen, swaps.PerSecond())
	}
	if err != nil {
		t.Fatal(err)
	}
	if sample.Lost() != 0 {
		t.Errorf("%d of %d packets were lost", sample.Sent-sample.Received, sample.Sent)
	}
}
