package track

import (
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/traffic"
)

// However many slots are shared, every packet comes to its flow's backend, which the sink knows.
func TestShared(t *testing.T) {
	way := traffic.Traffic{Protocol: model.TCP, Flows: 1000, VIPs: 1, Frames: []int{64}}
	for shared := range drains {
		stream := streamed(t, started(t, Options{Subject: Weir(model.IPIP, false, false), Traffic: way, Backends: 255, Shared: shared}), way)
		for range 2 { // the second time, the flows are known
			sample, err := stream.Measure(sampleLength)
			if err != nil {
				t.Fatalf("%d %% shared: %v", shared, err)
			}
			if sample.Lost() != 0 {
				t.Errorf("%d %% shared: %d of %d packets were lost", shared, sample.Sent-sample.Received, sample.Sent)
			}
		}
		t.Chdir("bench/track") // started changes to the parent directory again
	}
}
