package health

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/smtp"
	"net/textproto"

	"weir.io/weir/internal/model"
)

// mostSMTP bounds how much of a mail server's answers is read.
const mostSMTP = 64 << 10

// newSMTP makes a probe that takes a mail server's greeting, introduces itself and leaves: no mail is begun.
// With a section for TLS the connection begins with the handshake, or has it after STARTTLS.
func newSMTP(how *model.HealthCheck) (probe, error) {
	hello := &greeting{}
	if how.SMTP != nil {
		hello.how = *how.SMTP
	}
	if how.TLS == nil {
		return overTCP(hello.on), nil
	}
	config, err := tlsConfig(how)
	if err != nil {
		return nil, err
	}
	if !hello.how.StartTLS {
		return with(config, hello.on), nil
	}
	hello.tls = config
	return overTCP(hello.on), nil
}

// greeting is what is said to every mail server of a service.
type greeting struct {
	how model.HealthSMTP
	tls *tls.Config // for STARTTLS; nil: there is none
}

// on greets on a connection.
func (g *greeting) on(_ context.Context, conn net.Conn, a *attempt) error {
	client, err := smtp.NewClient(&briefConn{Conn: conn, left: mostSMTP}, "")
	if err != nil {
		return refusedBy(err, "the greeting is")
	}
	name := g.how.Helo
	if name == "" {
		name = addressLiteral(conn.LocalAddr())
	}
	if err := client.Hello(name); err != nil {
		return refusedBy(err, "EHLO and HELO are answered with")
	}
	if g.tls != nil {
		if has, _ := client.Extension("STARTTLS"); !has {
			return failure(Handshake, "the server does not have STARTTLS")
		}
		a.at = shaking
		if err := client.StartTLS(g.tls); err != nil {
			return refusedBy(err, "STARTTLS is answered with")
		}
		a.at = asking
	}
	_ = client.Quit() // a server that does not say goodbye has answered all the same
	return nil
}

// refusedBy says what a server has answered in place of what was hoped for.
func refusedBy(err error, what string) error {
	var answer *textproto.Error
	if errors.As(err, &answer) {
		return failure(Status, "%s %d %s", what, answer.Code, answer.Msg)
	}
	return err
}

// addressLiteral is the name of a client without one (RFC 5321, section 4.1.3).
func addressLiteral(local net.Addr) string {
	at, is := local.(*net.TCPAddr)
	switch {
	case !is:
		return "localhost"
	case at.IP.To4() != nil:
		return "[" + at.IP.String() + "]"
	}
	return "[IPv6:" + at.IP.String() + "]"
}

// briefConn is a connection of which so many bytes are read at most: the library's reader takes lines of any
// length.
type briefConn struct {
	net.Conn
	left  int
	begun bool
}

// Read fails after the last byte, and if the first one is of no code: the library would wait for more lines.
func (c *briefConn) Read(to []byte) (int, error) {
	if c.left <= 0 {
		return 0, failure(Malformed, "the answers have more than %d KiB", mostSMTP>>10)
	}
	n, err := c.Conn.Read(to[:min(len(to), c.left)])
	c.left -= n
	if n > 0 && !c.begun && (to[0] < '0' || to[0] > '9') {
		return 0, failure(Malformed, "the greeting begins with %q, and not with a code", to[:min(n, 20)])
	}
	c.begun = c.begun || n > 0
	return n, err
}
