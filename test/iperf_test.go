package test

import (
	"encoding/json"
	"testing"
)

// iperf3 measures through every mode and family: TCP up and down, and UDP without
// a lost datagram.
//
//	iperf3 --- router --- switch --- director
//	                             --- iperf3
func TestIperf(t *testing.T) {
	l := newLab(t, size{backends: 1})
	var services []string
	for _, w := range ways {
		services = append(services, w.service("tcp", "5201", everyBackend(1)), w.service("udp", "5201", everyBackend(1)))
	}
	l.start(services...)
	eachWay(t, func(t *testing.T, w way) {
		at := w.at(1, 5201)
		for name, args := range map[string][]string{
			"tcp up":   {"--bytes", "20M"},
			"tcp down": {"--bytes", "20M", "--reverse"},
			// So few that a socket's buffer holds all of them while the reading process waits for
			// the CPU.
			"udp": {"--bytes", "36K", "--udp", "--length", "1200", "--bitrate", "1M"},
		} {
			t.Run(name, func(t *testing.T) {
				startServer(t, l.backends[0], at, "iperf3", "--server", "--one-off", "--bind", at.Addr().String())
				out := on(t, l.client, "iperf3", append([]string{"--client", w.vip().String(), "--json"}, args...)...)
				wantMeasured(t, out, name == "udp")
			})
		}
	})
}

// wantMeasured checks iperf3's result of one run.
func wantMeasured(t *testing.T, out string, udp bool) {
	t.Helper()
	var result struct {
		Error string
		End   struct {
			Received struct{ Bytes int } `json:"sum_received"`
			Sum      struct {
				Packets int
				Lost    int `json:"lost_packets"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("read the result: %v", err)
	}
	switch {
	case result.Error != "":
		t.Errorf("iperf3 says %s", result.Error)
	case udp && (result.End.Sum.Packets == 0 || result.End.Sum.Lost > 0):
		t.Errorf("%d of %d datagrams were lost", result.End.Sum.Lost, result.End.Sum.Packets)
	case !udp && result.End.Received.Bytes == 0:
		t.Errorf("nothing was received")
	}
}
