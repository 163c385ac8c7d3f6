package bgp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// fault is why one side ends a session: the content of a NOTIFICATION.
type fault struct {
	code, subcode uint8
	data          []byte
	text          string // in words for the log
	received      bool   // the neighbor sent it
	hard          bool   // it was sent as a hard reset (RFC 8538)
	because       error  // why we end it, if it is on purpose
}

// Error returns the text.
func (f *fault) Error() string { return f.text }

// Unwrap returns why a session is ended on purpose.
func (f *fault) Unwrap() error { return f.because }

func newFault(code, subcode uint8, format string, args ...any) *fault {
	return &fault{code: code, subcode: subcode, text: fmt.Sprintf(format, args...)}
}

// connection is a TCP connection on which messages come and go.
type connection struct{ net.Conn }

// message is a received message, its body as it came.
type message struct {
	kind uint8
	body []byte
}

// read reads a message: no longer than BGP allows, and of a known kind.
func (c *connection) read(deadline time.Time) (message, error) {
	if err := c.SetReadDeadline(deadline); err != nil {
		return message{}, err
	}
	var header [gobgp.BGP_HEADER_LENGTH]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return message{}, readError(err)
	}
	for _, b := range header[:16] {
		if b != 0xff {
			return message{}, newFault(gobgp.BGP_ERROR_MESSAGE_HEADER_ERROR, gobgp.BGP_ERROR_SUB_CONNECTION_NOT_SYNCHRONIZED,
				"it sends something that is not BGP: the marker of a message is % x", header[:16])
		}
	}
	length, kind := binary.BigEndian.Uint16(header[16:]), header[18]
	least := map[uint8]uint16{gobgp.BGP_MSG_OPEN: 29, gobgp.BGP_MSG_UPDATE: 23, gobgp.BGP_MSG_NOTIFICATION: 21,
		gobgp.BGP_MSG_KEEPALIVE: 19, gobgp.BGP_MSG_ROUTE_REFRESH: 23}[kind]
	switch {
	case least == 0:
		f := newFault(gobgp.BGP_ERROR_MESSAGE_HEADER_ERROR, gobgp.BGP_ERROR_SUB_BAD_MESSAGE_TYPE, "it sends a message of type %d, which there is not", kind)
		f.data = header[18:]
		return message{}, f
	case length < least || length > gobgp.BGP_MAX_MESSAGE_LENGTH || kind == gobgp.BGP_MSG_KEEPALIVE && length != least:
		f := newFault(gobgp.BGP_ERROR_MESSAGE_HEADER_ERROR, gobgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH, "it sends a message of type %d that is %d bytes long", kind, length)
		f.data = header[16:18]
		return message{}, f
	}
	m := message{kind, make([]byte, length-gobgp.BGP_HEADER_LENGTH)}
	if _, err := io.ReadFull(c, m.body); err != nil {
		return message{}, readError(err)
	}
	if kind == gobgp.BGP_MSG_NOTIFICATION {
		return m, received(m.body)
	}
	return m, nil
}

// readError says what the end of a connection means.
func readError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newFault(gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0, "it has been silent for the hold time")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it has closed the connection")
	}
	return systemError(err)
}

// received returns what a NOTIFICATION of the neighbor says.
func received(body []byte) *fault {
	code, subcode, data := body[0], body[1], body[2:]
	hard := ""
	if code == gobgp.BGP_ERROR_CEASE && subcode == gobgp.BGP_ERROR_SUB_HARD_RESET && len(data) >= 2 {
		hard, code, subcode, data = "hard reset: ", data[0], data[1], data[2:]
	}
	f := &fault{code: code, subcode: subcode, received: true, hard: hard != "",
		text: fmt.Sprintf("it ends the session: %s%s", hard, gobgp.NewNotificationErrorCode(code, subcode))}
	switch {
	case code == gobgp.BGP_ERROR_CEASE && subcode == subcodeBFDDown:
		f.text = fmt.Sprintf("it ends the session: %sits BFD finds the way lost (RFC 9384)", hard)
	case code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == gobgp.BGP_ERROR_SUB_BAD_PEER_AS:
		f.text += ": it expects another AS than bgp.asn"
	case code == gobgp.BGP_ERROR_CEASE && len(data) > 1 && int(data[0]) <= len(data)-1 &&
		(subcode == gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN || subcode == gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET):
		// RFC 9003: a text for the operator.
		f.text += fmt.Sprintf(": %q", strings.ToValidUTF8(string(data[1:1+data[0]]), "?"))
	}
	return f
}

// write sends messages.
func (c *connection) write(patience time.Duration, messages ...*gobgp.BGPMessage) error {
	var all []byte
	for _, m := range messages {
		text, err := m.Serialize()
		if err != nil {
			return fmt.Errorf("write a BGP message: %w", err)
		}
		all = append(all, text...)
	}
	if err := c.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return systemError(err)
	}
	_, err := c.Write(all)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("it does not read what it is sent")
	}
	return systemError(err)
}

// farewell is how long a NOTIFICATION may take.
const farewell = time.Second

// refuse tells the neighbor why the session ends, unless the neighbor ended it, and returns the
// error.
func (c *connection) refuse(err error) error {
	var f *fault
	if !errors.As(err, &f) || f.received {
		return err
	}
	if c.write(farewell, gobgp.NewBGPNotificationMessage(f.code, f.subcode, f.data)) == nil {
		c.linger()
	}
	return err
}

// linger reads until the neighbor has closed its side. The kernel resets a connection that is
// closed with something unread in it, and a neighbor that sees that may never read the last
// message.
func (c *connection) linger() {
	if half, is := c.Conn.(interface{ CloseWrite() error }); !is || half.CloseWrite() != nil {
		return
	}
	end := time.AfterFunc(farewell, func() { _ = c.Close() }) // another reader may set another deadline
	defer end.Stop()
	_, _ = io.Copy(io.Discard, c)
}

// interrupt closes a connection with the context.
func (c *connection) interrupt(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

// systemError returns the system's own error: the errors that wrap it repeat addresses that the log
// has already.
func systemError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		var call *os.SyscallError
		if errors.As(op.Err, &call) {
			return call.Err
		}
		return op.Err
	}
	return err
}
