package api

import (
	"context"
	"fmt"
	"net/http"

	"weir.io/weir/internal/model"
)

// Ring is which backends own a service's slots.
type Ring struct {
	Service  string   `json:"service"`
	Backends []string `json:"backends" doc:"their names, those that have lost slots with the last change too"`
	Owners   []int    `json:"owners" doc:"for each slot its owner's place in backends; -1: nobody"`
	// Compared says that the membership before the newest one is known, and of the same size:
	// it leaves the service's log when no connection needs it any more.
	Compared bool       `json:"compared" doc:"what has moved with the last change is known"`
	Moved    []RingMove `json:"moved" doc:"slots that another one owned before the last change"`
}

// RingMove is a slot that has moved.
type RingMove struct {
	Slot int `json:"slot"`
	From int `json:"from" doc:"who owned it: a place in backends; -1: nobody"`
}

// HandleRing lets clients look at a service's ring. It is called before Serve.
func (s *Server) HandleRing(ring func(service string) (Ring, bool)) {
	type input struct {
		Service string `query:"service" required:"true" doc:"the service's name"`
	}
	type output struct{ Body Ring }
	handle(s, operation{method: http.MethodGet, path: "ring", id: "get-ring", summary: "Who owns the slots of a service's ring, and what has moved", needs: model.RoleRead, large: true, errors: []int{http.StatusServiceUnavailable}},
		func(_ context.Context, in *input) (*output, error) {
			r, found := ring(in.Service)
			if !found {
				return nil, NewProblem(http.StatusNotFound, fmt.Sprintf("there is no service %q", in.Service))
			}
			r.Backends, r.Owners, r.Moved = orEmpty(r.Backends), orEmpty(r.Owners), orEmpty(r.Moved)
			return &output{r}, nil
		})
}
