package bgp

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
	"unicode/utf8"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir.io/weir/lab/memlab"
)

// came is a connection on which these bytes have come, and then its end.
type came struct {
	net.Conn
	bytes []byte
}

// Read gives what has come.
func (c *came) Read(p []byte) (int, error) {
	if len(c.bytes) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.bytes)
	c.bytes = c.bytes[n:]
	return n, nil
}

// SetReadDeadline is not needed: nothing is waited for.
func (*came) SetReadDeadline(time.Time) error { return nil }

// FuzzRead: of whatever a neighbor sends, messages come whole and no longer than BGP allows, and
// what ends the session is said in words that can be written into a log.
func FuzzRead(f *testing.F) {
	framed := func(kind uint8, body ...byte) []byte {
		header := make([]byte, gobgp.BGP_HEADER_LENGTH)
		for i := range header[:16] {
			header[i] = 0xff
		}
		binary.BigEndian.PutUint16(header[16:], uint16(len(header)+len(body)))
		header[18] = kind
		return append(header, body...)
	}
	f.Add(append(framed(gobgp.BGP_MSG_KEEPALIVE), framed(gobgp.BGP_MSG_UPDATE, 0, 0, 0, 0)...))
	f.Add(framed(gobgp.BGP_MSG_NOTIFICATION, gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, 4, 'b', 'y', 'e', 0x1b))
	f.Add(framed(gobgp.BGP_MSG_NOTIFICATION, gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_HARD_RESET, 6, 2, 200, 'x'))
	f.Add(framed(gobgp.BGP_MSG_ROUTE_REFRESH, 0, 1, 0, 1))
	f.Add(framed(77))
	f.Add(framed(gobgp.BGP_MSG_KEEPALIVE)[:18])
	f.Fuzz(func(t *testing.T, bytes []byte) {
		memlab.Bound{PerByte: 40, AtLeast: 1 << 20}.Check(t, len(bytes), func() {
			for all := (&connection{&came{bytes: bytes}}); ; {
				if _, err := all.read(time.Time{}); err != nil {
					return
				}
			}
		})
		c := &connection{&came{bytes: bytes}}
		for left := len(bytes); ; {
			m, err := c.read(time.Time{})
			var fault *fault
			if errors.As(err, &fault) && !utf8.ValidString(fault.text) {
				t.Fatalf("the session ends with %q", fault.text)
			}
			if err != nil {
				return // it ends the session
			}
			took := left - len(c.Conn.(*came).bytes)
			if took != gobgp.BGP_HEADER_LENGTH+len(m.body) || took > gobgp.BGP_MAX_MESSAGE_LENGTH {
				t.Fatalf("a message of %d bytes is read from %d", len(m.body), took)
			}
			left -= took
		}
	})
}
