package api

import (
	"cmp"
	"context"
	"net/http"

	"weir.io/weir/internal/model"
)

// Drain asks for backends to be drained, or to get connections again.
type Drain struct {
	Backend string             `json:"backend" minLength:"1" maxLength:"253" doc:"name or address"`
	Service string             `json:"service,omitempty" maxLength:"253" doc:"of this service alone; none: of all"`
	Owner   string             `json:"owner,omitempty" maxLength:"63" doc:"of this owner's set alone; none: of all that the caller may write"`
	State   model.BackendState `json:"state,omitempty" doc:"what it is to be: draining, where nothing is given, or active or down"`
}

// Drained is a backend that a drain has found.
type Drained struct {
	Owner   string             `json:"owner"`
	Service string             `json:"service"`
	Backend string             `json:"backend" doc:"its name"`
	Before  model.BackendState `json:"before"`
	State   model.BackendState `json:"state"`
	Fixed   bool               `json:"fixed,omitempty" doc:"it stands in a set that comes with its logs, or the file itself says another state than active, and stays what it is"`
	Last    bool               `json:"last,omitempty" doc:"no backend of the service is active any more: those that were the last go on getting its new connections"`
	// Override is the override of a backend of the director's own file.
	Override *model.Override `json:"override,omitempty"`
	Unkept   string          `json:"unkept,omitempty" doc:"why it does not outlive the director's process, if it does not: the state directory cannot be written"`
}

type drainInput struct{ Body Drain }

// attributes say in the log what is drained, and whether it is: weir undrain asks here, too.
func (in *drainInput) attributes() []any {
	return []any{"backend", in.Body.Backend, "state", cmp.Or(in.Body.State, model.Draining)}
}

func (s *Server) handleDrain() {
	type output struct{ Body []Drained }
	handle(s, operation{method: http.MethodPost, path: "drain", id: "drain", summary: "Drain backends, or end that", needs: model.RoleWrite, segmented: true, changes: true,
		text: "Every backend of that name or address gets the state: in the sets themselves, so that it lasts until the set's owner puts another; and beside the director's own file, until the same is asked for with state active, or the file says otherwise. " +
			"A draining backend keeps its connections and gets no new ones.", errors: []int{http.StatusConflict, http.StatusServiceUnavailable}},
		func(ctx context.Context, in *drainInput) (*output, error) {
			d := in.Body
			if d.State == 0 {
				d.State = model.Draining
			}
			who := callerOf(ctx)
			if d.State == model.Suspect {
				return nil, NewProblem(http.StatusUnprocessableEntity, "state: nobody asks for a suspect", FieldProblem{Field: "state", Detail: "is draining, active or down"})
			}
			if d.Owner == "" {
				d.Owner = who.Owner // empty for an admin: of all owners
			}
			if p := who.refuse(model.RoleWrite, d.Owner, true); p != nil {
				return nil, p
			}
			if err := s.within(ctx, d.Owner); err != nil {
				return nil, err
			}
			drained, err := s.sets.Drain(ctx, d)
			return &output{orEmpty(drained)}, err
		})
}

// Drain drains backends, or lets them get connections again.
func (c *Client) Drain(ctx context.Context, d Drain) ([]Drained, error) {
	return post[[]Drained](ctx, c, "drain", d)
}
