// Package ovsdb speaks the management protocol of Open vSwitch's databases: JSON-RPC 1.0 as of RFC 7047,
// and what ovsdb-server(7) adds to it. What a database's tables mean is for others:
// [weir.io/weir/internal/ovn].
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	// openTimeout is how long it may take to open a connection, with TLS.
	openTimeout = 5 * time.Second
	// silence is after how long without a byte the server is asked whether it is there, and after how
	// long without an answer it is not. Its one thread may be busy for seconds with somebody's transaction.
	silence = 5 * time.Second
	// writeTimeout is how long the server may leave a request in the socket.
	writeTimeout = 10 * time.Second
	// mostMessage is how many bytes a message may have. The first answer has all rows: about 700 bytes
	// for a port.
	mostMessage = 1 << 30
)

// Conn is a connection to a server. One goroutine at a time reads from it (Next, Call).
type Conn struct {
	conn  net.Conn
	input *input
	read  *json.Decoder
	kept  []Message // notifications that came while Call waited for an answer

	mu   sync.Mutex // one request at a time is written
	last uint64     // the last request's number
}

// Message is an answer to a request, or a notification.
type Message struct {
	Reply  uint64            // the request that it answers; 0: it is a notification
	Result json.RawMessage   // of an answer
	Err    error             // of an answer: an *Error
	Method string            // of a notification
	Params []json.RawMessage // of a notification
}

// Error is an error that the server reports: RFC 7047 section 3.1.
type Error struct {
	Kind    string `json:"error"` // such as "unknown database" or "constraint violation"
	Details string `json:"details"`
}

// Error returns the kind and the details.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Kind
	}
	return e.Kind + ": " + e.Details
}

// Open connects to an endpoint: tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH.
func Open(ctx context.Context, endpoint string, t TLS) (*Conn, error) {
	e, err := ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, err := e.dial(ctx, t)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn: conn}
	c.input = &input{conn: c, most: mostMessage}
	c.read = json.NewDecoder(c.input)
	return c, nil
}

// Close ends the connection, and with it what waits for it.
func (c *Conn) Close() { c.conn.Close() }

// Request sends a request, whose answer Next returns with the same number.
func (c *Conn) Request(method string, params ...any) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	if params == nil {
		params = []any{}
	}
	return c.last, c.send(map[string]any{"id": c.last, "method": method, "params": params})
}

// send writes a message. The mutex is held.
func (c *Conn) send(message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("write a message: %w", err)
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err = c.conn.Write(text)
	return err
}

// Next waits for an answer or a notification. The server's questions whether this client is there are
// answered here, so a client has to call it all the time.
func (c *Conn) Next() (Message, error) {
	if len(c.kept) > 0 {
		m := c.kept[0]
		c.kept = c.kept[1:]
		return m, nil
	}
	return c.next()
}

func (c *Conn) next() (Message, error) {
	for {
		var m struct {
			ID     json.RawMessage   `json:"id"`
			Method string            `json:"method"`
			Params []json.RawMessage `json:"params"`
			Result json.RawMessage   `json:"result"`
			Error  json.RawMessage   `json:"error"`
		}
		c.input.left = c.input.most
		if err := c.read.Decode(&m); err != nil {
			return Message{}, closed(err)
		}
		switch {
		case m.Method == "echo":
			c.mu.Lock()
			err := c.send(map[string]any{"id": m.ID, "result": m.Params, "error": nil})
			c.mu.Unlock()
			if err != nil {
				return Message{}, err
			}
		case m.Method != "":
			return Message{Method: m.Method, Params: m.Params}, nil
		case string(m.ID) == alive:
			// The answer to input's question: that something came is all it says.
		default:
			number, err := strconv.ParseUint(string(m.ID), 10, 64)
			if err != nil {
				return Message{}, fmt.Errorf("an answer to a request %s, which was not made", m.ID)
			}
			return Message{Reply: number, Result: m.Result, Err: failure(m.Error)}, nil
		}
	}
}

// closed says in words what an error of reading means that has none.
func closed(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the server closed the connection")
	case errors.Is(err, net.ErrClosed):
		return err
	}
	return fmt.Errorf("read what the server sends: %w", err)
}

// failure reads the error of an answer: an object, but of some requests a string.
func failure(text json.RawMessage) error {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	e := &Error{}
	if err := json.Unmarshal(text, e); err != nil || e.Kind == "" {
		e.Kind, e.Details = string(text), ""
		_ = json.Unmarshal(text, &e.Kind) // else it stays as it is
	}
	return e
}

// Call sends a request, and waits for the answer. Notifications that come before it are for Next.
func (c *Conn) Call(method string, params ...any) (json.RawMessage, error) {
	number, err := c.Request(method, params...)
	for err == nil {
		var m Message
		if m, err = c.next(); err != nil {
			break
		}
		if m.Reply == number {
			err = m.Err
			if err == nil {
				return m.Result, nil
			}
			break
		}
		c.kept = append(c.kept, m)
	}
	return nil, fmt.Errorf("%s: %w", method, err)
}

// alive is the number of the question whether the server is there.
const alive = `"alive"`

// input reads from a connection whose other end may have gone without a word.
type input struct {
	conn  *Conn
	most  int  // how many bytes a message may have
	left  int  // how many this one may still have
	asked bool // whether the server is there
}

func (i *input) Read(p []byte) (int, error) {
	if i.left <= 0 {
		return 0, fmt.Errorf("a message has more than %d bytes", i.most)
	}
	for {
		if err := i.conn.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return 0, err
		}
		n, err := i.conn.conn.Read(p[:min(len(p), i.left)])
		if n > 0 {
			i.left -= n
			i.asked = false
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if i.asked {
			return 0, fmt.Errorf("the server has not answered for %v", 2*silence)
		}
		i.asked = true
		i.conn.mu.Lock()
		err = i.conn.send(map[string]any{"id": json.RawMessage(alive), "method": "echo", "params": []any{}})
		i.conn.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
}
