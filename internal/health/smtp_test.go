package health

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// mail answers as a mail server does: the greeting, and what each command is answered with.
func mail(greeting string, answers map[string]string, certificate *tls.Certificate) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting)
		lines := bufio.NewScanner(conn)
		for lines.Scan() {
			command, _, _ := strings.Cut(strings.ToUpper(lines.Text()), " ")
			answer, known := answers[command]
			if !known {
				answer = "502 no such command\r\n"
			}
			if strings.Contains(answer, "ARGUMENT") {
				answer = strings.ReplaceAll(answer, "ARGUMENT", lines.Text())
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
			if command == "STARTTLS" && answer[0] == '2' {
				conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*certificate}})
				lines = bufio.NewScanner(conn)
			}
		}
	}
}

func TestMailServers(t *testing.T) {
	director, s := newLab(t)
	ca := newAuthority(t)
	certificate := ca.sign("mail.example.org")
	answers := map[string]string{"EHLO": "250-mail.example.org\r\n250 STARTTLS\r\n", "STARTTLS": "220 go on\r\n", "QUIT": "221 bye\r\n"}
	s.tcp("10.0.0.2:25", mail("220-mail.example.org\r\n220 ESMTP\r\n", answers, certificate))
	s.tcp("10.0.0.2:26", mail("554 no mail here\r\n", answers, certificate))
	s.tcp("10.0.0.2:27", mail("220 old\r\n", map[string]string{"HELO": "250 hello\r\n"}, certificate))
	s.tcp("10.0.0.2:28", mail("220 ill\r\n", map[string]string{"EHLO": "421 too busy\r\n", "HELO": "421 too busy for ARGUMENT\r\n"}, certificate))
	s.tcp("10.0.0.2:29", mail("SSH-2.0\r\n", answers, certificate))
	s.tcp("10.0.0.2:30", mail("220 "+strings.Repeat("x", 2*mostSMTP), answers, certificate))
	s.tcp("10.0.0.2:31", mail("", answers, certificate))
	s.tcp("10.0.0.2:32", func(net.Conn) {})
	s.tcp("10.0.0.2:33", mail("220 x\r\n", map[string]string{"EHLO": "250-x\r\n250 STARTTLS\r\n", "STARTTLS": "454 not now\r\n"}, certificate))
	s.tcp("10.0.0.2:465", func(conn net.Conn) {
		mail("220 x\r\n", answers, nil)(tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*certificate}}))
	})
	s.tcp("[2001:db8::2]:25", mail("220 x\r\n", map[string]string{"HELO": "250 x\r\n", "EHLO": "250-x\r\n250 ARGUMENT\r\n"}, certificate))
	trusted := &model.HealthTLS{Name: "mail.example.org", CA: ca.pem()}
	start := &model.HealthSMTP{StartTLS: true}
	for _, test := range []struct {
		name   string
		to     string
		smtp   *model.HealthSMTP
		tls    *model.HealthTLS
		want   Reason
		detail string
	}{
		{"well", "10.0.0.2:25", nil, nil, well, ""},
		{"well over IPv6", "[2001:db8::2]:25", nil, nil, well, ""},
		{"HELO alone", "10.0.0.2:27", &model.HealthSMTP{Helo: "director.example.org"}, nil, well, ""},
		{"STARTTLS", "10.0.0.2:25", start, trusted, well, ""},
		{"TLS from the beginning", "10.0.0.2:465", nil, trusted, well, ""},
		{"another certificate", "10.0.0.2:25", start, &model.HealthTLS{Name: "www.example.org", CA: ca.pem()}, Certificate, "certificate is valid for mail.example.org, not www.example.org"},
		{"no STARTTLS", "10.0.0.2:27", start, trusted, Handshake, "the server does not have STARTTLS"},
		{"STARTTLS refused", "10.0.0.2:33", start, trusted, Status, "STARTTLS is answered with 454 not now"},
		{"no mail here", "10.0.0.2:26", nil, nil, Status, "the greeting is 554 no mail here"},
		{"busy", "10.0.0.2:28", &model.HealthSMTP{Helo: "director.example.org"}, nil, Status, "EHLO and HELO are answered with 421 too busy for HELO director.example.org"},
		{"its address for a name", "10.0.0.2:28", nil, nil, Status, "421 too busy for HELO [10.0.0.1]"},
		{"another protocol", "10.0.0.2:29", nil, nil, Malformed, `the greeting begins with "SSH-2.0`},
		{"endless", "10.0.0.2:30", nil, nil, Malformed, "the answers have more than 64 KiB"},
		{"silent", "10.0.0.2:31", nil, nil, Timeout, "connected, and no answer within"},
		{"closes", "10.0.0.2:32", nil, nil, Closed, ""},
		{"nobody", "10.0.0.2:8080", nil, nil, Refused, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			timeout := patience
			if test.want == Timeout {
				timeout = patience / 10
			}
			p := probing{how: model.HealthCheck{Kind: model.CheckSMTP, SMTP: test.smtp, TLS: test.tls}, to: test.to}
			checkFailure(t, p.from(t, director, timeout), test.want, test.detail)
		})
	}
}

// scripted is a connection on which a text has come.
type scripted struct {
	net.Conn
	text io.Reader
}

func (c scripted) Read(to []byte) (int, error)        { return c.text.Read(to) }
func (c scripted) Write(text []byte) (n int, _ error) { return len(text), nil }
func (c scripted) LocalAddr() net.Addr                { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)} }
func (c scripted) Close() error                       { return nil }

// FuzzMailServer: no answers crash their reader; a server that is well has greeted with 220 and answered with 250.
func FuzzMailServer(f *testing.F) {
	f.Add("220 x\r\n250 x\r\n221 x\r\n")
	f.Add("220-x\r\n220 y\r\n250-x\r\n250 STARTTLS\r\n221 x\r\n")
	f.Add("220 x\r\n502 x\r\n250 x\r\n")
	f.Add("220 x\n250-x\n250-y\n")
	f.Add("554 x\r\n")
	f.Add("220\r\n250\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		err := (&greeting{}).on(t.Context(), scripted{text: strings.NewReader(text)}, &attempt{})
		if err == nil && (!strings.HasPrefix(text, "220") || !strings.Contains(text, "\n250")) {
			t.Fatalf("%q is well", text)
		}
		if err != nil {
			if f := explain(err, asking, 0); f.Reason == Local || f.Reason == Timeout || len(f.Detail) == 0 || errors.Is(err, errors.ErrUnsupported) {
				t.Fatalf("%q is explained as %v", text, f)
			}
		}
	})
}
