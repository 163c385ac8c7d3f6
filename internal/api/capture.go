package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir.io/weir/internal/model"
)

// Capturer begins a capture, which lasts at most as long as the context. An error that is a Problem
// has its own status.
type Capturer func(context.Context, model.Capture) (CaptureRun, error)

// CaptureRun passes what a capture takes to send, until the context or the capture ends, or send
// has an error.
type CaptureRun func(ctx context.Context, send func([]model.CaptureMessage) error) error

// captureType is the content type of lines of JSON.
const captureType = "application/x-ndjson"

// capturePatience is how long a client may stop reading: then it counts as gone, and its capture
// ends.
const capturePatience = 10 * time.Second

// How often a client may begin a capture: each loads a program, which takes the kernel up to
// seconds.
const (
	captureEvery = 2 * time.Second
	captureBurst = 5
)

type captured struct{ Body model.Capture }

// HandleCapture handles captures of packets. It is called before Serve.
func (s *Server) HandleCapture(begin Capturer) {
	begun := newPaces(captureEvery, captureBurst, noBound)
	line := s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[model.CaptureMessage](), true, "")
	handle(s, operation{method: http.MethodPost, path: "capture", id: "capture", summary: "Packets as they come and leave, with what became of each", needs: model.RoleAdmin,
		text: "The answer is lines of JSON. The first says that it has begun, the last why it has ended; about once in a second one says what was left out. " +
			"There is one capture at a time, and a client may begin five at once and one every two seconds. It ends with its limits, with the connection, and when its client does not read.",
		answers: map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{captureType: {Schema: line}}}},
		errors:  []int{http.StatusConflict, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *captured) (*huma.StreamResponse, error) {
			client := callerOf(ctx).Name
			if wait := begun.wait(client); wait > 0 {
				return nil, tooSoon(wait, "captures are begun too often: each loads a program")
			}
			// The capture ends with the server, which can still tell the client.
			life, end := context.WithCancel(ctx)
			follow := context.AfterFunc(s.streams, end)
			run, err := begin(life, in.Body)
			if refused := (*Problem)(nil); !errors.As(err, &refused) {
				begun.take(client) // loading a program was done, or tried
			}
			if err != nil {
				follow()
				end()
				return nil, err
			}
			return &huma.StreamResponse{Body: func(to huma.Context) {
				defer end()
				defer follow()
				s.stream(to, run)
			}}, nil
		})
}

// stream sends what a capture takes to its client.
func (s *Server) stream(to huma.Context, run CaptureRun) {
	_ = to.SetReadDeadline(time.Time{}) // no more is read, however long it takes
	to.SetHeader("Content-Type", captureType)
	to.SetStatus(http.StatusOK)
	w, is := to.BodyWriter().(http.ResponseWriter)
	if !is {
		s.log.Error("a capture cannot be sent: there is no response")
		return
	}
	control := http.NewResponseController(w)
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	err := run(to.Context(), func(messages []model.CaptureMessage) error {
		lines.Reset()
		for i := range messages {
			if err := encoder.Encode(&messages[i]); err != nil {
				return fmt.Errorf("write a captured packet: %w", err)
			}
		}
		if err := control.SetWriteDeadline(time.Now().Add(capturePatience)); err != nil {
			return fmt.Errorf("bound how long a client may not read: %w", err)
		}
		if _, err := w.Write(lines.Bytes()); err != nil {
			return err
		}
		return control.Flush()
	})
	if err != nil {
		s.log.Warn("a capture has ended early", "client", callerOf(to.Context()).Name, "error", err)
	}
}

// ErrCaptureCut says that a director has ended a capture without saying why.
var ErrCaptureCut = errors.New("the connection to the director has ended, and the capture with it")

// Capture calls take with all messages of a capture, until it or the context ends, or take has an
// error.
func (c *Client) Capture(ctx context.Context, wanted model.Capture, take func(*model.CaptureMessage) error) error {
	body, err := encode(wanted)
	if err != nil {
		return err
	}
	waiting, answered, cancel := c.patience(ctx, clientTimeout)
	defer cancel()
	response, err := c.send(waiting, http.MethodPost, "capture", jsonHeader, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answered()
	lines := json.NewDecoder(response.Body)
	for {
		var m model.CaptureMessage
		switch err := lines.Decode(&m); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return ErrCaptureCut
		case err != nil:
			return c.readError("a capture", silence(waiting, err))
		}
		if err := take(&m); err != nil {
			return err
		}
		if m.Ended != "" {
			return nil
		}
	}
}
