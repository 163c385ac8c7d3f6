package sim

// mostEstimates bounds the memory that directors' knowledge of their own requests takes.
const mostEstimates = 1 << 22

// estimate is what directors think that servers have: what the servers reported, and what each
// director has placed there itself since. With more directors and servers than mostEstimates
// allows, the second part is left out: then hardly two requests that come to a server between two
// reports are from the same director.
type estimate struct {
	reports *reports
	weights []float64
	own     []placed // by director and server; nil: none
}

// placed is how many requests a director has placed on a server since a report of it.
type placed struct{ report, requests uint32 }

func newEstimate(r *cluster) *estimate {
	e := &estimate{reports: r.reports, weights: r.weights}
	if n := r.config.Directors * r.config.Servers; r.config.Interval > 0 && n <= mostEstimates {
		e.own = make([]placed, n)
	}
	return e
}

// cost is how many requests per weight the server would have with one more.
func (e *estimate) cost(director int, server int32) float64 {
	has := e.reports.told[server] + 1
	if e.own != nil {
		if p := e.own[director*len(e.weights)+int(server)]; p.report == e.reports.number[server] {
			has += int32(p.requests)
		}
	}
	return float64(has) / e.weights[server]
}

// note notes that a director places a request on a server.
func (e *estimate) note(director int, server int32) {
	if e.own == nil {
		return
	}
	p := &e.own[director*len(e.weights)+int(server)]
	if now := e.reports.number[server]; p.report != now {
		*p = placed{report: now}
	}
	p.requests++
}
