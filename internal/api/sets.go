package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"weir.io/weir/internal/model"
)

const (
	setsPath = "/v1/sets/"
	setBytes = 256 << 20 // as a configuration file
)

// Sets is where the services of owners are kept.
type Sets interface {
	// Put makes the services in the text the whole of an owner's set, or says what
	// that would change. An error that is a Problem has its own status.
	Put(ctx context.Context, owner string, text []byte, dryRun bool) (SetChange, error)
}

// SetChange is what became of a set: services by their names, in order.
type SetChange struct {
	Revision uint64   `json:"revision"` // of the state that has it
	Added    []string `json:"added"`
	Changed  []string `json:"changed"`
	Removed  []string `json:"removed"`
	// Moves are what becomes of the slots of those that are changed.
	Moves []model.Move `json:"moves"`
}

// HandleSets lets sets be put. It is called before Serve.
func (s *Server) HandleSets(sets Sets) { s.sets = sets }

func (s *Server) putSet(w http.ResponseWriter, r *http.Request) {
	owner := strings.TrimPrefix(r.URL.Path, setsPath)
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", http.MethodPut)
		writeProblem(w, http.StatusMethodNotAllowed, "a set can only be put")
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, setBytes))
	if err != nil {
		writeProblem(w, http.StatusRequestEntityTooLarge, err.Error())
		return
	}
	s.answer(w, r, func() (any, error) {
		change, err := s.sets.Put(r.Context(), owner, text, r.URL.Query().Has("dry-run"))
		change.Added, change.Changed, change.Removed, change.Moves = orEmpty(change.Added), orEmpty(change.Changed), orEmpty(change.Removed), orEmpty(change.Moves)
		return change, err
	})
}

// PutSet makes the services in the text, a file of weir apply, an owner's set.
func (c *Client) PutSet(ctx context.Context, owner string, text []byte, dryRun bool) (change SetChange, err error) {
	url := "http://weir" + setsPath + owner
	if dryRun {
		url += "?dry-run"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(text))
	if err != nil {
		return change, fmt.Errorf("put a set: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return change, c.connectError(err)
	}
	defer response.Body.Close()
	body := json.NewDecoder(io.LimitReader(response.Body, answerBytes))
	if response.StatusCode != http.StatusOK {
		return change, readProblem(response, body)
	}
	if err := body.Decode(&change); err != nil {
		return change, fmt.Errorf("read the answer about the set: %w", err)
	}
	return change, nil
}

// statusOfError returns the status that an answer's error has.
func statusOfError(err error) int {
	var problem Problem
	if errors.As(err, &problem) {
		return problem.Status
	}
	return http.StatusInternalServerError
}
