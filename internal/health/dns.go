package health

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"weir.io/weir/internal/model"
)

// newDNS makes a probe that asks for one name, by the protocol of the service.
func newDNS(how *model.HealthCheck) (probe, error) {
	name, err := dnsmessage.NewName(strings.TrimSuffix(how.DNS.Name, ".") + ".")
	if err != nil {
		return nil, err
	}
	q := &query{how.DNS, dnsmessage.Question{Name: name, Type: dnsmessage.Type(how.DNS.Type), Class: dnsmessage.ClassINET}}
	return q.probe, nil
}

type query struct {
	how      *model.HealthDNS
	question dnsmessage.Question
}

func (q *query) probe(ctx context.Context, a *attempt) error {
	if a.check.Target.Service.Protocol == model.TCP {
		return overTCP(func(_ context.Context, conn net.Conn, _ *attempt) error { return q.ask(conn, streamed) })(ctx, a)
	}
	conn, err := a.datagrams(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	return q.ask(conn, plain)
}

// framing is how messages are told apart on a connection.
type framing struct {
	write func(net.Conn, []byte) error
	read  func(net.Conn) ([]byte, error)
}

// plain has a message in each datagram, streamed each after its length (RFC 1035, section
// 4.2.2).
var (
	plain = framing{
		write: func(c net.Conn, message []byte) error { _, err := c.Write(message); return err },
		read: func(c net.Conn) ([]byte, error) {
			buffer := make([]byte, 4096)
			n, err := c.Read(buffer)
			return buffer[:n], err
		},
	}
	streamed = framing{
		write: func(c net.Conn, message []byte) error {
			_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
			return err
		},
		read: func(c net.Conn) ([]byte, error) {
			var length [2]byte
			if _, err := io.ReadFull(c, length[:]); err != nil {
				return nil, err
			}
			message := make([]byte, binary.BigEndian.Uint16(length[:]))
			_, err := io.ReadFull(c, message)
			return message, err
		},
	}
)

// mostOthers is how many messages may come before the answer: a backend that sends without end must not
// take the director's CPU until the timeout.
const mostOthers = 1000

// ask sends the query and judges its answer. Messages that do not answer it are ignored: others may
// have sent them.
func (q *query) ask(conn net.Conn, f framing) error {
	id := uint16(rand.Uint32())
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{q.question},
	}
	packed, err := message.Pack()
	if err != nil {
		return err
	}
	if err := f.write(conn, packed); err != nil {
		return err
	}
	for range mostOthers {
		text, err := f.read(conn)
		if err != nil {
			return err
		}
		var parser dnsmessage.Parser
		header, err := parser.Start(text)
		if err != nil || header.ID != id || !header.Response {
			continue
		}
		return q.judge(&parser, header)
	}
	return failure(Malformed, "%d messages came, and none of them answers the query", mostOthers)
}

// judge looks at the answer's code, and that it is about what was asked. Servers that do
// not understand a query may answer with the header alone.
func (q *query) judge(parser *dnsmessage.Parser, header dnsmessage.Header) error {
	code := model.DNSCode(header.RCode)
	if !slices.Contains(q.how.RCodes, code) {
		return failure(RCode, "%s %s was answered with %s", q.question.Name, q.how.Type, code)
	}
	question, err := parser.Question()
	if err != nil && code == 0 {
		return failure(Malformed, "the answer does not repeat the question")
	}
	if err == nil && (!strings.EqualFold(question.Name.String(), q.question.Name.String()) || question.Type != q.question.Type) {
		return failure(Malformed, "the answer is about %s %s", question.Name, question.Type)
	}
	return nil
}
