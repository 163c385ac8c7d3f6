package test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// iperf3 measures to a pod and back: TCP up and down, and UDP without a lost datagram, even if
// datagrams leave the pod in fragments.
func TestPodsIperf(t *testing.T) {
	l := newPodLab(t, 0, 1)
	l.serve(append(l.services("tcp", 5201), l.services("udp", 5201)...)...)
	at := fmt.Sprint(podPort(1, 5201))
	for _, w := range podWays {
		for name, args := range map[string][]string{
			"tcp up":             {"--bytes", "20M"},
			"tcp down":           {"--bytes", "20M", "--reverse"},
			"udp":                {"--bytes", "36K", "--udp", "--length", "1200", "--bitrate", "1M"},
			"udp down":           {"--bytes", "36K", "--udp", "--length", "1200", "--bitrate", "1M", "--reverse"},
			"udp fragments down": {"--bytes", "36K", "--udp", "--length", "4000", "--bitrate", "1M", "--reverse"},
		} {
			t.Run(w.String()+", "+name, func(t *testing.T) {
				startServer(t, l.pods[0], netip.AddrPortFrom(podAddress(1, 1, w.inner6), podPort(1, 5201)), "iperf3", "--server", "--one-off", "--port", at, "--bind", podAddress(1, 1, w.inner6).String())
				// A warning about fragmented datagrams comes before the JSON.
				out := on(t, l.client, "iperf3", append([]string{"--client", w.vip().String(), "--port", "5201", "--json"}, args...)...)
				wantMeasured(t, out[max(0, strings.Index(out, "{")):], slices.Contains(args, "--udp"))
			})
		}
	}
}

// Large answers arrive if a link on their way to the client has a smaller MTU: the ICMP error about
// them goes to the VIP, and reaches the pod that sent them.
func TestPodsBehindSmallMTU(t *testing.T) {
	t.Parallel()
	l := newPodLabOf(t, size{edgeMTU: 1280}, 1, 1)
	var roots []string
	for i, pod := range l.pods {
		roots = append(roots, startNginxAt(t, pod, podPort(l.numbers[i], 80)))
	}
	l.serve(l.services("tcp", 80)...)
	for _, w := range podWays {
		t.Run(w.String(), func(t *testing.T) {
			for range 3 { // probably by both pods
				download(t, l.client, w, roots)
			}
			upload(t, l.client, w, roots)
		})
	}
}

// Datagrams in fragments arrive unchanged, each at one of two pods with the service.
func TestFragmentsToPods(t *testing.T) {
	t.Parallel()
	l := newPodLabOf(t, size{lanMTU: 1700}, 1, 2)
	for _, six := range []bool{false, true} {
		for i, pod := range l.pods {
			digest(t, pod, netip.AddrPortFrom(podAddress(l.of[i], l.numbers[i], six), podPort(l.numbers[i], 7)))
		}
	}
	l.serve(l.services("udp", 7)...)
	sender := &fragmentLab{lab: l.lab}
	for _, w := range podWays {
		for port := range 12 {
			if !sender.arrives(w, fragmentPort+port, 4000, answered) {
				t.Errorf("%s: a datagram of 4000 bytes from port %d does not arrive as it was", w, fragmentPort+port)
			}
			if !sender.arrives(w, fragmentPort+port, 400, answered) {
				t.Errorf("%s: nor does one of 400 bytes behind it", w)
			}
		}
	}
}
