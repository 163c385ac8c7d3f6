package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"

	"weir.io/weir/lab/netlab"
)

// patience is how long a client waits for an answer, through a retransmitted SYN
// or two.
const patience = 5 * time.Second

// connection is a client's connection: HTTP over TCP, or a UDP flow.
type connection interface {
	// ask sends a request with a body of that many bytes and returns the number of
	// the backend that answered, from 0.
	ask(size int) (backend int, err error)
	Close() error
}

// dialer opens connections to a row's VIP.
type dialer func(ctx context.Context, host *netlab.Host, vip netip.Addr) (connection, error)

// httpConnection is written by hand: net/http's client would silently open another connection when
// this one breaks.
type httpConnection struct {
	net.Conn
	reader *bufio.Reader
}

func dialHTTP(ctx context.Context, host *netlab.Host, vip netip.Addr) (connection, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := host.DialContext(ctx, "tcp", netip.AddrPortFrom(vip, httpPort).String())
	if err != nil {
		return nil, err
	}
	return &httpConnection{conn, bufio.NewReader(conn)}, nil
}

func (c *httpConnection) ask(size int) (int, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	body := pattern(size)
	request, err := http.NewRequest(http.MethodPost, "http://demo.example/", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if err := request.Write(c); err != nil {
		return 0, fmt.Errorf("send request: %w", err)
	}
	response, err := http.ReadResponse(c.reader, request)
	if err != nil {
		return 0, fmt.Errorf("read response: %w", err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return 0, fmt.Errorf("read response: %w", err)
	case response.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("the server says %s", response.Status)
	case !bytes.Equal(got, body):
		return 0, errors.New("the answer is not what was sent")
	}
	backend, err := strconv.Atoi(response.Header.Get("Backend"))
	if err != nil || backend < 0 || backend >= backends {
		return 0, fmt.Errorf("no backend calls itself %q", response.Header.Get("Backend"))
	}
	return backend, nil
}

// errMoved says that a UDP flow came to another backend than before.
var errMoved = errors.New("the flow moved to another backend")

// echoConnection is a UDP flow. Its datagrams are numbered, so that a late answer
// is not taken for the next one's.
type echoConnection struct {
	net.Conn
	sent    uint64
	backend int // the one that answered last; -1: none yet
}

func dialEcho(ctx context.Context, host *netlab.Host, vip netip.Addr) (connection, error) {
	conn, err := host.DialContext(ctx, "udp", netip.AddrPortFrom(vip, echoPort).String())
	if err != nil {
		return nil, err
	}
	return &echoConnection{conn, 0, -1}, nil
}

// longestDatagram fits, with every header that a mode adds, in 1500 bytes.
const longestDatagram = 1200

// resend is how long a client waits for an echo before it sends again, as resolvers
// do: a network may lose datagrams.
const resend = time.Second

func (c *echoConnection) ask(size int) (int, error) {
	c.sent++
	datagram := pattern(min(size, longestDatagram) + 8)
	binary.BigEndian.PutUint64(datagram, c.sent)
	for end := time.Now().Add(patience); ; {
		if _, err := c.Write(datagram); err != nil {
			return 0, fmt.Errorf("send datagram: %w", err)
		}
		backend, err := c.echo(datagram)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return backend, err
		}
	}
}

// echo waits for a datagram's echo, for a while, and returns the backend that sent it.
func (c *echoConnection) echo(datagram []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(resend)); err != nil {
		return 0, err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return 0, fmt.Errorf("wait for the echo: %w", err)
		}
		if n >= 9 && binary.BigEndian.Uint64(buffer[1:]) < c.sent {
			continue
		}
		backend := int(buffer[0])
		if n < 1 || !bytes.Equal(buffer[1:n], datagram) || backend >= backends {
			return 0, errors.New("the echo is not what was sent")
		}
		before := c.backend
		c.backend = backend
		if before >= 0 && before != backend {
			return 0, fmt.Errorf("%w: %d, then %d", errMoved, before+1, backend+1)
		}
		return backend, nil
	}
}

// pattern returns bytes that show when some are lost, doubled or swapped.
func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i ^ i>>8)
	}
	return data
}
