package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Errors that a client can find in a connection, in addition to those of its socket.
var (
	ErrWrongData    = errors.New("wrong data")
	ErrOtherBackend = errors.New("another backend answers")
)

// request is the header before the bytes of a client: the connection, how many bytes follow, and
// how many it wants back.
type request struct {
	id       uint64
	up, down uint32
}

const requestSize = 16

func (r request) append(p []byte) []byte {
	p = binary.BigEndian.AppendUint64(p, r.id)
	p = binary.BigEndian.AppendUint32(p, r.up)
	return binary.BigEndian.AppendUint32(p, r.down)
}

func parseRequest(p []byte) request {
	return request{binary.BigEndian.Uint64(p), binary.BigEndian.Uint32(p[8:]), binary.BigEndian.Uint32(p[12:])}
}

// Identity is the answering backend, and its life.
type Identity struct {
	Backend uint16
	Life    uint16
}

// String returns the backend's name.
func (i Identity) String() string { return fmt.Sprintf("backend%d", i.Backend+1) }

// answer is the header before the bytes of a server.
type answer struct {
	id     uint64
	from   Identity
	status uint32 // 0, or wrong if the server got wrong bytes
}

const (
	answerSize = 16
	wrong      = 1
)

func (a answer) append(p []byte) []byte {
	p = binary.BigEndian.AppendUint64(p, a.id)
	p = binary.BigEndian.AppendUint16(p, a.from.Backend)
	p = binary.BigEndian.AppendUint16(p, a.from.Life)
	return binary.BigEndian.AppendUint32(p, a.status)
}

func parseAnswer(p []byte) answer {
	return answer{binary.BigEndian.Uint64(p), Identity{binary.BigEndian.Uint16(p[8:]), binary.BigEndian.Uint16(p[10:])},
		binary.BigEndian.Uint32(p[12:])}
}

// bufferSize is how many bytes are read or written at once.
const bufferSize = 8 << 10

// send writes a header and then this many bytes of a stream.
func send(w io.Writer, buffer, header []byte, s *Stream, n int) error {
	for begin := copy(buffer, header); n > 0 || begin > 0; begin = 0 {
		part := buffer[:min(len(buffer), begin+n)]
		s.Fill(part[begin:])
		n -= len(part) - begin
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// receive reads this many bytes and checks that they are the stream's.
func receive(r io.Reader, buffer []byte, s *Stream, n int) error {
	for n > 0 {
		got, err := r.Read(buffer[:min(len(buffer), n)])
		if wrong := s.Check(buffer[:got]); wrong != nil {
			return wrong
		}
		if n -= got; err != nil && n > 0 {
			return err
		}
	}
	return nil
}
