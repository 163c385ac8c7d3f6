package api

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"weir.io/weir/internal/model"
)

// FlowQuery is which flows are asked for.
type FlowQuery struct {
	Service string
	Client  netip.Addr // zero: any
	Backend netip.Addr // zero: any
	Most    int
}

// DefaultFlows is how many flows are listed by default.
const DefaultFlows = 1000

// The tables of flows, in the API.
const (
	TableFlowMemory = "flow-memory"
	TableFullNAT    = "full-nat"
)

// Flow is a flow whose backend the director remembers.
type Flow struct {
	Table   string         `json:"table" enum:"flow-memory,full-nat" doc:"which of the director's tables has it"`
	Service string         `json:"service"`
	Client  netip.AddrPort `json:"client"`
	VIP     netip.Addr     `json:"vip"`
	Port    uint16         `json:"port" doc:"of the VIP"`
	Backend netip.AddrPort `json:"backend" doc:"with port 0: the packet's own"`
	Source  netip.AddrPort `json:"source,omitzero" doc:"full NAT: the director's address and port from which its packets come to the backend"`
	Class   string         `json:"class" enum:"fresh,sustained,proved" doc:"how far what was seen of it shows that it is one; fresh: it gives way to others"`
	State   string         `json:"state" enum:"opening,open,closing,reset" doc:"opening: TCP: nothing but SYNs, or one packet of a connection that this director did not know, so that its backend is a guess (learned in docs/internals/datapath.md); UDP: one datagram. open: it has gone on. closing: a FIN. reset: a RST"`
	Idle    model.Duration `json:"idle,omitempty" doc:"since its last packet; none: about a second at most"`
}

// Flows are some of the flows that a director remembers.
type Flows struct {
	Flows []Flow `json:"flows"`
	More  bool   `json:"more" doc:"there are more than were asked for"`
}

// HandleFlows lets clients ask for the flows that a director remembers. It is called before Serve.
func (s *Server) HandleFlows(list func(context.Context, FlowQuery) (Flows, error)) {
	type input struct {
		Service string     `query:"service" doc:"of this service alone"`
		Client  netip.Addr `query:"client" doc:"of this client's address alone"`
		Backend netip.Addr `query:"backend" doc:"of the backend of this address alone"`
		Limit   int        `query:"limit" minimum:"1" maximum:"100000" default:"1000" doc:"how many at most"`
	}
	type output struct{ Body Flows }
	handle(s, operation{method: http.MethodGet, path: "flows", id: "get-flows", summary: "The flows whose backends the director remembers", needs: model.RoleRead, large: true, errors: []int{http.StatusServiceUnavailable},
		text: "Most flows are in none, but those of full NAT: the ring says where their packets go. See docs/internals/consistency.md for which are."},
		func(ctx context.Context, in *input) (*output, error) {
			flows, err := list(ctx, FlowQuery{Service: in.Service, Client: in.Client, Backend: in.Backend, Most: in.Limit})
			flows.Flows = orEmpty(flows.Flows)
			return &output{flows}, err
		})
}

// Flows lists flows that the director remembers.
func (c *Client) Flows(ctx context.Context, q FlowQuery) (Flows, error) {
	query := url.Values{}
	if q.Service != "" {
		query.Set("service", q.Service)
	}
	for name, a := range map[string]netip.Addr{"client": q.Client, "backend": q.Backend} {
		if a.IsValid() {
			query.Set(name, a.String())
		}
	}
	if q.Most > 0 {
		query.Set("limit", strconv.Itoa(q.Most))
	}
	return get[Flows](ctx, c, "flows?"+query.Encode())
}
