package health

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"weir.io/weir/internal/model"
)

// asServers makes the test binary a process that serves what the benchmarks probe: what
// it takes must not count as weir's.
const asServers = "WEIR_TEST_HEALTH_SERVERS"

func TestMain(m *testing.M) {
	if os.Getenv(asServers) != "" {
		serveAll()
		return
	}
	os.Exit(m.Run())
}

// serveAll serves each kind on all addresses, says on what ports, and ends with its
// standard input.
func serveAll() {
	listen := func(serve func(net.Listener)) {
		l, err := net.Listen("tcp4", ":0")
		if err != nil {
			panic(err)
		}
		fmt.Print(l.Addr().(*net.TCPAddr).Port, " ")
		go serve(l)
	}
	listen(func(l net.Listener) {
		for {
			if conn, err := l.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
		}
	})
	listen(func(l net.Listener) {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
	})
	listen(func(l net.Listener) {
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, grpchealth.NewServer())
		_ = server.Serve(l)
	})
	udp, err := net.ListenUDP("udp4", nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(udp.LocalAddr().(*net.UDPAddr).Port)
	go func() {
		buffer := make([]byte, 4096)
		for {
			if n, from, err := udp.ReadFromUDPAddrPort(buffer); err == nil {
				_, _ = udp.WriteToUDPAddrPort(dnsAnswer(buffer[:n]), from)
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startServers returns the ports of TCP, HTTP, gRPC and UDP.
func startServers(b *testing.B) (ports [4]uint16) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), self)
	cmd.Env = append(os.Environ(), asServers+"=1")
	input, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { input.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Fscan(strings.NewReader(line), &ports[0], &ports[1], &ports[2], &ports[3]); err != nil {
		b.Fatal(err)
	}
	return ports
}

// BenchmarkThousandBackends checks 1,000 backends once a second and reports what share of
// a CPU that takes, and the kernel's part of it. A run is a second. Client and server are
// on one host, so the kernel's work for both ends is in it.
func BenchmarkThousandBackends(b *testing.B) {
	ports := startServers(b)
	for _, test := range []struct {
		kind model.CheckKind
		port uint16
	}{
		{model.CheckTCP, ports[0]}, {model.CheckSYN, ports[0]}, {model.CheckHTTP, ports[1]}, {model.CheckGRPC, ports[2]},
		{model.CheckUDP, ports[3]}, {model.CheckDNS, ports[3]}, {model.CheckICMP, ports[3]},
	} {
		b.Run(string(test.kind), func(b *testing.B) {
			c := newChecker(b, Direct{})
			var checks []model.Check
			for i := range 1000 {
				to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i / 250), byte(1 + i%250)}), test.port)
				check := checkOf(i, to, func(h *model.HealthCheck) {
					h.Kind, h.Interval, h.Timeout = test.kind, model.Duration(time.Second), model.Duration(5*time.Second)
					if h.Kind == model.CheckDNS {
						h.DNS = &model.HealthDNS{Name: "a.example"}
					}
				})
				check.Target.Service.Protocol = model.UDP
				checks = append(checks, check)
			}
			c.Set(checks)
			for up := 0; up < len(checks); time.Sleep(10 * time.Millisecond) { // between two looks
				up = 0
				for _, state := range c.States() {
					if state == model.HealthUp {
						up++
					}
				}
			}
			begun, probes := usage(b), c.Probes()[0].Count
			for b.Loop() {
				time.Sleep(time.Second) // what is measured
			}
			took := usage(b)
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(100*(took.all-begun.all).Seconds()/seconds, "%cpu")
			b.ReportMetric(100*(took.kernel-begun.kernel).Seconds()/seconds, "%kernel")
			b.ReportMetric(float64(c.Probes()[0].Count-probes)/seconds, "probes/s")
			if all := c.Probes(); all[0].Count == probes {
				b.Errorf("no probe succeeded: %v", all)
			}
		})
	}
}

type used struct{ all, kernel time.Duration }

// usage is the CPU time of this process.
func usage(b *testing.B) used {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	kernel := time.Duration(u.Stime.Nano())
	return used{kernel + time.Duration(u.Utime.Nano()), kernel}
}
