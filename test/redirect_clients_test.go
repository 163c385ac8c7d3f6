package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"weir.io/weir/internal/model"
)

// The services of the lab that the parts of TestRedirectedClients share.
var (
	clientsWeb  = redirectService{number: 1, port: 80, fallback: "gue", backends: everyBackend(3)}
	clientsRPC  = redirectService{number: 2, port: 50051, fallback: "gue", backends: everyBackend(3)}
	clientsEcho = redirectService{number: 3, port: 7000, to: 7007, fallback: "nat", backends: everyBackend(2)}
)

func (s redirectService) at(six bool) string {
	return netip.AddrPortFrom(redirectVIP(s.number, six), uint16(s.port)).String()
}

// Programs that keep a connection for long, or begin many from one port; and what the director and
// the client's wire see of them.
func TestRedirectedClients(t *testing.T) {
	t.Parallel()
	l := newRedirectLab(t, clientsWeb, clientsRPC, clientsEcho, clientsSQL)
	for _, b := range l.backends {
		startNginx(t, b)
	}
	for _, b := range l.backends[:2] {
		echoStream(t, b, netip.MustParseAddrPort("[::]:7007"))
	}
	t.Run("gRPC", l.callsByRPC)
	t.Run("PostgreSQL", l.callsPostgres)
	t.Run("the director's counters stand still", l.leavesDirectorAlone)
	t.Run("tcpdump", l.isSeenOnTheWire)
	t.Run("ports again", l.usesPortsAgain)
	if n := l.event("client", "again") + l.event("neighbor", "again"); n != 0 {
		t.Errorf("%d SYNs were sent again", n)
	}
}

// bothFamilies runs a part once for IPv4 and once for IPv6.
func bothFamilies(t *testing.T, part func(t *testing.T, six bool)) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) { part(t, six) })
	}
}

// callsByRPC makes calls, and keeps a stream open on which the server sends without being asked.
func (l *redirectLab) callsByRPC(t *testing.T) {
	var states []*health.Server
	for _, b := range l.backends {
		listener, err := b.Listen("tcp", ":"+strconv.Itoa(clientsRPC.port))
		if err != nil {
			t.Fatal(err)
		}
		server, state := grpc.NewServer(), health.NewServer()
		grpc_health_v1.RegisterHealthServer(server, state)
		states = append(states, state)
		go func() { _ = server.Serve(listener) }() // until the server is stopped
		t.Cleanup(server.Stop)
	}
	bothFamilies(t, func(t *testing.T, six bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for _, s := range states {
			s.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
		}
		l.bypasses(t, 1, func() {
			conn, err := grpc.NewClient("passthrough:///"+clientsRPC.at(six), grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return l.client.DialContext(ctx, "tcp", to) }))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := grpc_health_v1.NewHealthClient(conn)
			watch, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			hears := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
				t.Helper()
				if said, err := watch.Recv(); err != nil || said.Status != want {
					t.Fatalf("the stream says %v (%v), want %v", said, err, want)
				}
			}
			hears(grpc_health_v1.HealthCheckResponse_SERVING)
			for range 100 {
				if said, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil || said.Status != grpc_health_v1.HealthCheckResponse_SERVING {
					t.Fatalf("the call is answered by %v (%v)", said, err)
				}
			}
			for _, s := range states {
				s.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			}
			hears(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		})
	})
}

// bulkBytes is how much goes to the server and back.
const bulkBytes = 8 << 20

// leavesDirectorAlone looks at the director after a connection's handshake and again after a large
// transfer. The client's host redirects its packets unsegmented.
func (l *redirectLab) leavesDirectorAlone(t *testing.T) {
	text := make([]byte, bulkBytes)
	_, _ = rand.Read(text) // it never fails
	bothFamilies(t, func(t *testing.T, six bool) {
		conn, err := l.client.DialContext(t.Context(), "tcp", clientsEcho.at(six))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
			t.Fatal(err)
		}
		handed, others := l.passing()
		before := l.redirected(t, "client", clientsEcho, six)
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(text)
			sent <- err
		}()
		back := make([]byte, len(text))
		if _, err := io.ReadFull(conn, back); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, text) {
			t.Error("what comes back is not what was sent")
		}
		if nowHanded, nowOthers := l.passing(); nowHanded != handed || nowOthers != others {
			t.Errorf("after the handshake the director has counted %d SYNs and %d other packets", nowHanded-handed, nowOthers-others)
		}
		after := l.redirected(t, "client", clientsEcho, six)
		packets, bytes := after.SentPackets-before.SentPackets, after.SentBytes-before.SentBytes
		if bytes < bulkBytes || packets == 0 || bytes/packets < 2*1500 {
			t.Errorf("the client's host has redirected %d bytes in %d packets, want %d bytes in packets of several segments", bytes, packets, bulkBytes)
		}
	})
}

// redirected is what a host's agent knows of a service.
func (l *redirectLab) redirected(t *testing.T, host string, of redirectService, six bool) model.AgentRedirect {
	t.Helper()
	name := fmt.Sprintf("redirect%d-%v", of.number, six)
	for _, r := range l.agents[host].agentStatus().Redirects {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("the agent of %s knows no %s", host, name)
	return model.AgentRedirect{}
}

// isSeenOnTheWire looks at the client's wire: a SYN to the VIP that asks for redirection, a
// backend's answer that grants it, and from then on only the backend's own address.
func (l *redirectLab) isSeenOnTheWire(t *testing.T) {
	bothFamilies(t, func(t *testing.T, six bool) {
		vip, family := redirectVIP(clientsWeb.number, six), map[bool]string{false: "ip", true: "ip6"}[six]
		file := filepath.Join(l.client.Dir(), fmt.Sprintf("wire-%v.pcap", six))
		dump := l.client.Command(context.Background(), "tcpdump", "-i", "eth0", "-n", "-U", "-w", file, family+" and tcp port 80")
		said, err := dump.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := dump.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(said); lines.Scan() && !strings.Contains(lines.Text(), "listening on"); {
		}
		on(t, l.client, "curl", "-sS", "--fail", "--max-time", "10", "http://"+clientsWeb.at(six)+"/name")
		var wire []string
		waitFor(t, "the end of the connection on the wire", func() bool {
			out, err := exec.Command("tcpdump", "-n", "-r", file).Output() // the file may be half written
			wire = strings.Split(strings.TrimSpace(string(out)), "\n")
			return err == nil && strings.Count(string(out), "Flags [F.]") >= 2
		})
		if err := dump.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, said)
		_ = dump.Wait()
		const option = "exp-5752" // RFC 6994's experiment of docs/internals/datapath.md, as tcpdump prints it
		for n, line := range wire {
			asks, toVIP := strings.Contains(line, option), strings.Contains(line, vip.String()+".80:")
			if begins := n < 2; asks != begins || toVIP != (n == 0) {
				t.Errorf("packet %d of the connection to %s: %s", n, vip, line)
			}
		}
		if len(wire) < 6 {
			t.Errorf("%d packets were on the wire", len(wire))
		}
	})
}
