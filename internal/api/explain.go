package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"weir.io/weir/internal/model"
)

// Explainer says what a director would do with a packet. An error that is a Problem has its
// own status.
type Explainer func(context.Context, model.Question) (model.Explanation, error)

type question struct{ Body model.Question }

type explanation struct{ Body model.Explanation }

// HandleExplain lets clients ask about packets. It is called before Serve.
func (s *Server) HandleExplain(explain Explainer) {
	handle(s, operation{method: http.MethodPost, path: "explain", id: "explain-packet", summary: "What would become of a packet, and why", needs: model.RoleRead,
		text:   "The director's program says so itself. Nothing is counted, remembered or sent. To suppose a set takes the right to put it.",
		errors: []int{http.StatusConflict, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *question) (*explanation, error) {
			if with := in.Body.With; with != nil {
				if p := callerOf(ctx).refuse(model.RoleWrite, with.Owner, true); p != nil {
					return nil, p
				}
			}
			e, err := explain(ctx, in.Body)
			for _, slot := range []*model.ExplainedSlot{e.Slot, e.Before} {
				if slot != nil {
					slot.Candidates = orEmpty(slot.Candidates)
				}
			}
			e.Steps = orEmpty(e.Steps)
			return &explanation{e}, err
		})
}

// Explain asks what the director would do with a packet.
func (c *Client) Explain(ctx context.Context, q model.Question) (answer model.Explanation, err error) {
	text, err := json.Marshal(q)
	if err != nil {
		return answer, fmt.Errorf("ask about a packet: %w", err)
	}
	_, err = c.ask(ctx, http.MethodPost, "explain", http.Header{"Content-Type": {"application/json"}}, text, &answer)
	return answer, err
}
