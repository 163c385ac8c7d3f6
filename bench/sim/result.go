package sim

// Result is what became of the requests that count. Times are from a request's arrival
// until it departs.
type Result struct {
	Mean   float64
	Rate   float64 // of arrivals, as measured
	Held   float64 // how many requests the cluster had, over time; 0 if it was not followed
	Most   float64 // how many the fullest server had, over time; likewise
	Events int     // arrivals and departures that were simulated

	times []float64 // sorted
}

// Percentile returns the time that this share of the requests, 0 to 1, did not exceed.
func (r *Result) Percentile(share float64) float64 {
	at := int(share * float64(len(r.times)))
	return r.times[min(at, len(r.times)-1)]
}

// mostHeld follows how many requests the fullest server has.
type mostHeld struct {
	servers []int32 // how many servers have each number of requests
	most    int32
	area    float64
}

// note notes that a server has one request more: now it has this many.
func (m *mostHeld) note(has int32) {
	for int(has) >= len(m.servers) {
		m.servers = append(m.servers, 0)
	}
	m.servers[has-1]--
	m.servers[has]++
	m.most = max(m.most, has)
}

// leave notes that a server has one request less: now it has this many.
func (m *mostHeld) leave(has int32) {
	m.servers[has+1]--
	m.servers[has]++
	if has+1 == m.most && m.servers[m.most] == 0 {
		m.most = has
	}
}

func (m *mostHeld) elapse(passed float64) { m.area += passed * float64(m.most) }
