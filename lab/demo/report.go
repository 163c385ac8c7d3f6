package demo

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what the demo saw.
type Report struct {
	Requests int   `json:"requests"`
	Failed   int   `json:"failed"`             // also because of a change of backends
	Ended    int   `json:"ended-with-backend"` // connections whose backend was removed or lost
	Changes  int   `json:"changes"`            // of backends, made by editing the files
	Rows     []Row `json:"rows"`
	// Router is the routing software: FRR; empty: FRR is not installed, the routes were set by
	// hand, and no director was lost.
	Router string `json:"router,omitempty"`
	Losses []Loss `json:"losses"` // in their order
	// Interrupted says that not everything was shown.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Row is what the demo saw of one mode in one family.
type Row struct {
	Mode     string     `json:"mode"`
	Family   string     `json:"family"` // the VIP's, and the tunnel's if it differs
	VIP      netip.Addr `json:"vip"`
	Requests int        `json:"requests"`
	Failed   int        `json:"failed"`
	Ended    int        `json:"ended-with-backend"`
	Shares   []Share    `json:"shares"`
	// Crossed counts reply packets that crossed a director; in a direct mode there
	// must be none.
	Crossed uint64    `json:"replies-through-director"`
	Direct  bool      `json:"direct"`
	Errors  []Failure `json:"errors,omitempty"`
}

// Share is a backend's part of the new TCP connections, from 0 to 1, and what its
// weights gave it while they were opened.
type Share struct {
	Backend string  `json:"backend"`
	Got     float64 `json:"got"`
	Want    float64 `json:"want"`
}

// Failure is an error and how often it occurred.
type Failure struct {
	Text  string `json:"text"`
	Times int    `json:"times"`
}

func (r *Report) add(row Row) {
	slices.SortFunc(row.Errors, func(a, b Failure) int {
		return cmp.Or(b.Times-a.Times, cmp.Compare(a.Text, b.Text))
	})
	r.Requests += row.Requests
	r.Failed += row.Failed
	r.Ended += row.Ended
	r.Rows = append(r.Rows, row)
}

// Err says what failed; nil when nothing did.
func (r *Report) Err() error {
	if r.Failed > 0 {
		return fmt.Errorf("%d of %d requests failed", r.Failed, r.Requests)
	}
	for _, l := range r.Losses {
		if l.Rerouted > 0 {
			return fmt.Errorf("%s: the router's routes changed %d times, which they should not", l.Event, l.Rerouted)
		}
	}
	for _, row := range r.Rows {
		switch {
		case row.Direct && row.Crossed > 0:
			return fmt.Errorf("%d replies of %s (%s) crossed a director", row.Crossed, row.Mode, row.Family)
		case row.Requests == row.Ended && !r.Interrupted:
			return fmt.Errorf("no request of %s (%s) was answered", row.Mode, row.Family)
		}
	}
	return nil
}

// Print writes the report as a table.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	names := make([]string, backends)
	for i := range names {
		names[i] = member{backend: i}.name()
	}
	fmt.Fprintf(t, "MODE\tFAMILY\tREQUESTS\tFAILED\tENDED\t%% SHARE/WEIGHT OF %s\tREPLIES THROUGH A DIRECTOR\n", strings.Join(names, ", "))
	for _, row := range r.Rows {
		shares := make([]string, len(row.Shares))
		for i, s := range row.Shares {
			shares[i] = fmt.Sprintf("%.1f/%.1f", 100*s.Got, 100*s.Want)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%d\n", row.Mode, row.Family, row.Requests, row.Failed,
			row.Ended, strings.Join(shares, "  "), row.Crossed)
	}
	fmt.Fprintf(t, "all\t\t%d\t%d\t%d\t\t\n", r.Requests, r.Failed, r.Ended)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, row := range r.Rows {
		for _, e := range row.Errors {
			fmt.Fprintf(w, "%s (%s): %d times: %s\n", row.Mode, row.Family, e.Times, e.Text)
		}
	}
	if err := r.printLosses(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThe backends changed %d times under this load. FAILED counts every connection that broke.\n"+
		"ENDED are connections that were still open when their backend was removed or lost. SHARE is of new TCP connections.\n", r.Changes)
	if err == nil && r.Interrupted {
		_, err = fmt.Fprintf(w, "Interrupted: that was not all.\n")
	}
	if err == nil && r.Router == "" {
		_, err = fmt.Fprintf(w, "FRR is not installed: the router's routes were set by hand, and no director was lost.\n")
	}
	return err
}

// printLosses writes what new flows noticed of losses as a table.
func (r *Report) printLosses(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nEVENT\tROUTER FOLLOWED AFTER\tNEW FLOWS NOTICED FOR\tLOST OF THEM\n")
	for _, l := range r.Losses {
		router, noticed := "-", "-"
		if l.Router > 0 {
			router = time.Duration(l.Router).String()
		}
		if l.Lost > 0 {
			noticed = time.Duration(l.Noticed).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d of %d\n", l.Event, router, noticed, l.Lost, l.Flows)
	}
	return t.Flush()
}
