package health

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

const well Reason = ""

// A director beside a backend, whose servers are well or broken in every way:
//
//	director 10.0.0.1, 2001:db8::1 -eth0--eth0- 10.0.0.2, 2001:db8::2 backend
func newLab(t *testing.T) (director *netlab.Host, s servers) {
	lab := netlab.ForTest(t)
	director, backend := lab.Host("director"), lab.Host("backend")
	lab.Link(director, backend, netlab.LinkOptions{
		A: []string{"10.0.0.1/24", "2001:db8::1/64"}, B: []string{"10.0.0.2/24", "2001:db8::2/64"}})
	return director, servers{t, backend}
}

// probing is one probe from the director.
type probing struct {
	how      model.HealthCheck
	to       string
	protocol model.Protocol
}

// from sends the probe from a host, and returns its failure.
func (p probing) from(t *testing.T, h *netlab.Host, timeout time.Duration) (found *Failure) {
	t.Helper()
	config := model.Config{Services: []model.Service{{Health: &p.how}}}
	config.SetDefaults()
	how := config.Services[0].Health
	probe, err := newProbe(how)
	if err != nil {
		t.Fatal(err)
	}
	check := model.Check{To: netip.MustParseAddrPort(p.to), How: how, Target: model.Target{Service: model.ServiceID{Protocol: p.protocol}}}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_ = h.Do(func() error {
		a := &attempt{check: &check, timeout: timeout}
		a.way = Direct{}.Way(&check)
		if probe == nil {
			err = connect(a)
		} else {
			err = probe(ctx, a)
		}
		if err != nil {
			found = explain(err, a.at, timeout)
		}
		return nil
	})
	return found
}

// connect has a connector make the probe.
func connect(a *attempt) error {
	var c connector
	defer c.close()
	a.at = connecting
	return c.connect(a)
}

// connect returns what becomes of one probe.
func (c *connector) connect(a *attempt) error {
	result := make(chan error, 1)
	c.start(context.Background(), a, connects[a.check.How.Kind], func(_ time.Duration, err error) { result <- err })
	for {
		select {
		case err := <-result:
			return err
		case <-time.After(time.Millisecond):
			c.collect()
		}
	}
}

// TestProbes sends every kind of probe to servers that are well and to broken ones, and
// wants the reason that an operator would give.
func TestProbes(t *testing.T) {
	director, s := newLab(t)
	ca, other := newAuthority(t), newAuthority(t)
	certificate := ca.sign("www.example.org")
	old := &tls.Config{Certificates: []tls.Certificate{*certificate}, MaxVersion: tls.VersionTLS11}
	for _, host := range []string{"10.0.0.2", "2001:db8::2"} {
		at := func(port int) string { return net.JoinHostPort(host, fmt.Sprint(port)) }
		s.http(at(80), nil)
		s.http(at(443), certificate)
		s.grpc(at(50051), nil)
		s.grpc(at(50052), certificate)
		s.plainGRPC(at(50053))
		s.tcp(at(1), func(c net.Conn) {})                                    // closes at once
		s.tcp(at(2), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })     // never answers
		s.tcp(at(3), func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0")) }) // speaks something else
		s.tcp(at(444), func(c net.Conn) { _ = tls.Server(c, old).Handshake() })
		s.tcp(at(53), dnsStream)
		s.udp(at(53), dnsAnswer)
		s.udp(at(7), func(b []byte) []byte { return b })
		s.udp(at(9), func([]byte) []byte { return nil })
	}
	nft(t, s.host, "add rule inet test in tcp dport 4 drop", "add rule inet test in udp dport 4 drop",
		"add rule inet test in tcp dport 5 reject with tcp reset",
		"add rule inet test in meta l4proto { tcp, udp } th dport 6 reject with icmpx host-unreachable",
		"add rule inet test in ip saddr 10.0.0.1 ip daddr 10.0.0.3 drop")
	s.host.Address("eth0", "10.0.0.3/24")

	get := func(kind model.CheckKind, change func(*model.HealthHTTP, *model.HealthTLS)) model.HealthCheck {
		h, tls := &model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/ok"}}, &model.HealthTLS{Name: "www.example.org", CA: ca.pem()}
		if change != nil {
			change(h, tls)
		}
		how := model.HealthCheck{Kind: kind, HTTP: h}
		if kind == model.CheckHTTPS {
			how.TLS = tls
		}
		return how
	}
	path := func(path string) model.HealthCheck {
		return get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) { h.Path = path })
	}
	body := func(body string) model.HealthCheck {
		return get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) { h.Body = body })
	}
	tls := func(tls model.HealthTLS) model.HealthCheck { return model.HealthCheck{Kind: model.CheckTLS, TLS: &tls} }
	grpc := func(service string) model.HealthCheck {
		return model.HealthCheck{Kind: model.CheckGRPC, GRPC: &model.HealthGRPC{Service: service}}
	}
	udp := func(send, expect model.Payload) model.HealthCheck {
		return model.HealthCheck{Kind: model.CheckUDP, UDP: &model.HealthUDP{Send: send, Expect: expect}}
	}
	dns := func(name string, codes ...model.DNSCode) model.HealthCheck {
		return model.HealthCheck{Kind: model.CheckDNS, DNS: &model.HealthDNS{Name: name, RCodes: codes}}
	}
	tcp, syn, icmp := model.HealthCheck{Kind: model.CheckTCP}, model.HealthCheck{Kind: model.CheckSYN}, model.HealthCheck{Kind: model.CheckICMP}
	for _, test := range []struct {
		name   string
		how    model.HealthCheck
		port   int
		want   Reason
		detail string
	}{
		{"tcp", tcp, 2, well, ""},
		{"tcp, wrong port", tcp, 8080, Refused, "the port is closed"},
		{"tcp, firewall drops", tcp, 4, Timeout, "no answer to a SYN within 300ms"},
		{"tcp, firewall resets", tcp, 5, Refused, ""},
		{"tcp, firewall says so", tcp, 6, Unreachable, "no route to host"},
		{"syn", syn, 2, well, ""},
		{"syn, wrong port", syn, 8080, Refused, ""},
		{"syn, firewall drops", syn, 4, Timeout, ""},

		{"http", get(model.CheckHTTP, nil), 80, well, ""},
		{"http, body", body("is well with"), 80, well, ""},
		{"http, host", get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) {
			h.Host, h.Body = "www.example.org", "well with www.example.org"
		}), 80, well, ""},
		{"http, HEAD", get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) { h.Method = "HEAD" }), 80, well, ""},
		{"http, early hints", path("/early"), 80, well, ""},
		{"http, other body", body("unwell"), 80, Body, `does not contain "unwell"`},
		{"http, endless body", get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) { h.Path, h.Body = "/endless", "x" }), 80, Body, ""},
		{"http, 500", path("/broken"), 80, Status, "GET /broken was answered with 500 Internal Server Error"},
		{"http, endless header", path("/wordy"), 80, Malformed, "the header of the answer does not end within 128 KiB"},
		{"http, redirected", path("/moved"), 80, Status, "302 Found"},
		{"http, redirected and that is fine", get(model.CheckHTTP, func(h *model.HealthHTTP, _ *model.HealthTLS) {
			h.Path, h.Status = "/moved", []model.StatusRange{{First: 200, Last: 200}, {First: 300, Last: 399}}
		}), 80, well, ""},
		{"http, slow answer", path("/slow"), 80, Timeout, "connected, and no answer within 300ms"},
		{"http, half-open only", path("/ok"), 2, Timeout, "connected, and no answer within 300ms"},
		{"http, closes", path("/ok"), 1, Closed, ""},
		{"http, other protocol", path("/ok"), 3, Malformed, "SSH-2.0"},
		{"http, wrong port", path("/ok"), 8080, Refused, ""},

		{"https", get(model.CheckHTTPS, nil), 443, well, ""},
		{"https, wrong name", get(model.CheckHTTPS, func(_ *model.HealthHTTP, tls *model.HealthTLS) { tls.Name = "mail.example.org" }), 443,
			Certificate, "certificate is valid for www.example.org, not mail.example.org"},
		{"https, 500", get(model.CheckHTTPS, func(h *model.HealthHTTP, _ *model.HealthTLS) { h.Path = "/broken" }), 443, Status, "500"},
		{"https, no TLS there", get(model.CheckHTTPS, nil), 80, Handshake, "the port does not speak TLS"},
		{"tls", tls(model.HealthTLS{Name: "www.example.org", CA: ca.pem()}), 443, well, ""},
		{"tls, other CA", tls(model.HealthTLS{Name: "www.example.org", CA: other.pem()}), 443, Certificate, "unknown authority"},
		{"tls, the system's CAs", tls(model.HealthTLS{Name: "www.example.org"}), 443, Certificate, "unknown authority"},
		{"tls, any certificate", tls(model.HealthTLS{SkipVerify: true}), 443, well, ""},
		{"tls, half-open only", tls(model.HealthTLS{SkipVerify: true}), 2, Timeout, "the TLS handshake did not end within 300ms"},
		{"tls, too old", tls(model.HealthTLS{SkipVerify: true}), 444, Handshake, "the server refused the handshake: tls: protocol version not supported"},
		{"tls, closes", tls(model.HealthTLS{SkipVerify: true}), 1, Closed, ""},

		{"grpc", grpc(""), 50051, well, ""},
		{"grpc over TLS", model.HealthCheck{Kind: model.CheckGRPC, TLS: &model.HealthTLS{Name: "www.example.org", CA: ca.pem()}}, 50052, well, ""},
		{"grpc, not serving", grpc("ill"), 50051, NotServing, "NOT_SERVING"},
		{"grpc, unknown service", grpc("shop.Cart"), 50051, NotServing, `does not know the service "shop.Cart"`},
		{"grpc, no health service", grpc(""), 50053, Malformed, "does not have grpc.health.v1.Health"},
		{"grpc, half-open only", grpc(""), 2, Timeout, ""},
		{"grpc, closes", grpc(""), 1, Closed, ""},
		{"grpc, wrong port", grpc(""), 8080, Refused, ""},

		{"udp, answered", udp("ping", "pin"), 7, well, ""},
		{"udp, not answered", udp("ping", ""), 9, well, ""},
		{"udp, not answered and it should", udp("ping", "pong"), 9, Timeout, "no answer within 300ms"},
		{"udp, other answer", udp("ping", "pong"), 7, Body, `does not contain "pong"`},
		{"udp, wrong port", udp("", ""), 8080, Refused, "the port is closed"},
		{"udp, firewall says so", udp("", ""), 6, Unreachable, "no route to host"},

		{"dns", dns("a.example"), 53, well, ""},
		{"dns, no such name", dns("five5.example"), 53, RCode, "five5.example. A was answered with nxdomain"},
		{"dns, no such name and that is fine", dns("five5.example.", 0, 3), 53, well, ""},
		{"dns, refused", dns("sixsix.example"), 53, RCode, "refused"},
		{"dns, refused and that is fine", dns("sixsix.example", 5), 53, well, ""},
		{"dns, answer about something else", dns("sevenor.example"), 53, Malformed, ""},
		{"dns, not DNS", dns("eighteen.example"), 53, Timeout, ""},
		{"dns, another query's answer", dns("nineteen9.example"), 53, Timeout, ""},
		{"dns, nobody", dns("a.example"), 8080, Refused, ""},
		{"icmp", icmp, 1, well, ""},
	} {
		for _, host := range []string{"10.0.0.2", "2001:db8::2"} {
			protocols := []model.Protocol{model.UDP}
			if test.how.Kind == model.CheckDNS && test.want != Timeout {
				protocols = append(protocols, model.TCP)
			}
			for _, protocol := range protocols {
				t.Run(fmt.Sprintf("%s of %s %s", test.name, host, protocol), func(t *testing.T) {
					t.Parallel()
					p := probing{test.how, net.JoinHostPort(host, fmt.Sprint(test.port)), protocol}
					if test.want != Timeout && test.name != "udp, not answered" {
						checkFailure(t, p.from(t, director, patience), test.want, test.detail)
						return
					}
					// Something has to end it, and what comes before that has to have happened by
					// then: on a busy machine later.
					timeout := 300 * time.Millisecond
					detail := func() string { return strings.ReplaceAll(test.detail, "300ms", timeout.String()) }
					got := p.from(t, director, timeout)
					for timeout < 10*time.Second && test.want == Timeout && got != nil && !strings.Contains(got.Detail, detail()) {
						timeout *= 6
						got = p.from(t, director, timeout)
					}
					checkFailure(t, got, test.want, detail())
				})
			}
		}
	}
	t.Run("icmp, firewall drops", func(t *testing.T) {
		checkFailure(t, probing{how: icmp, to: "10.0.0.3:1"}.from(t, director, 300*time.Millisecond), Timeout, "no answer within 300ms")
	})
	t.Run("tcp, no route", func(t *testing.T) {
		checkFailure(t, probing{how: tcp, to: "192.0.2.1:80"}.from(t, director, patience), Unreachable, "network is unreachable")
	})
	t.Run("tcp, no neighbor", func(t *testing.T) {
		checkFailure(t, probing{how: tcp, to: "10.0.0.9:80"}.from(t, director, patience), Unreachable, "no route to host")
	})
	t.Run("icmp, no neighbor", func(t *testing.T) {
		checkFailure(t, probing{how: icmp, to: "10.0.0.9:80"}.from(t, director, patience), Unreachable, "no route to host")
	})
}

// patience is longer than anything takes that does not wait for its timeout.
const patience = time.Minute

func checkFailure(t *testing.T, got *Failure, want Reason, detail string) {
	t.Helper()
	switch {
	case got == nil && want != well:
		t.Errorf("the probe finds nothing wrong, want %s", want)
	case got == nil:
	case got.Reason != want:
		t.Errorf("the probe says %s (%s), want %q", got.Reason, got.Detail, want)
	case !strings.Contains(got.Detail, detail):
		t.Errorf("the probe says %q, want %q in it", got.Detail, detail)
	}
}

// TestSYNMakesNoConnection has a server count what it accepts: connections come, SYN
// probes do not.
func TestSYNMakesNoConnection(t *testing.T) {
	director, s := newLab(t)
	l := s.listen("10.0.0.2:80")
	slow := 0 // the kernel holds the last ACK back for 200 ms
	for range 20 {
		begun := time.Now()
		checkFailure(t, probing{how: model.HealthCheck{Kind: model.CheckSYN}, to: "10.0.0.2:80"}.from(t, director, patience), well, "")
		if time.Since(begun) > 100*time.Millisecond {
			slow++
		}
	}
	conn, err := director.DialContext(t.Context(), "tcp", "10.0.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	others := 0
	for {
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if accepted.RemoteAddr().String() == conn.LocalAddr().String() {
			break
		}
		others++
	}
	if others > slow {
		t.Errorf("the server accepted %d connections that no client has made; %d probes were slow", others, slow)
	}
	await(t, "the server keeps no handshake that is not finished", func() bool { return !strings.Contains(sockets(t, s.host), " 03 ") }) // SYN_RECV
}

// sockets is what the kernel says of a host's TCP sockets.
func sockets(t *testing.T, h *netlab.Host) (text string) {
	t.Helper()
	if err := h.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/tcp")
		text = string(b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return text
}

// TestProbesLeaveNoSockets makes connections that the director ends first, and wants none
// of them to stay on their way to TIME_WAIT.
func TestProbesLeaveNoSockets(t *testing.T) {
	director, s := newLab(t)
	s.grpc("10.0.0.2:50051", nil)
	s.http("10.0.0.2:443", newAuthority(t).sign("www.example.org"))
	for _, test := range []struct {
		how model.HealthCheck
		to  string
	}{
		{model.HealthCheck{Kind: model.CheckTCP}, "10.0.0.2:443"},
		{model.HealthCheck{Kind: model.CheckTLS, TLS: &model.HealthTLS{SkipVerify: true}}, "10.0.0.2:443"},
		{model.HealthCheck{Kind: model.CheckHTTPS, HTTP: &model.HealthHTTP{HealthRequest: model.HealthRequest{Path: "/ok"}}, TLS: &model.HealthTLS{SkipVerify: true}}, "10.0.0.2:443"},
		{model.HealthCheck{Kind: model.CheckGRPC}, "10.0.0.2:50051"},
	} {
		checkFailure(t, probing{how: test.how, to: test.to}.from(t, director, patience), well, "")
		if left := sockets(t, director); strings.Count(left, "\n") > 1 { // the headline
			t.Errorf("a probe of kind %s leaves a connection behind:\n%s", test.how.Kind, left)
		}
	}
}
