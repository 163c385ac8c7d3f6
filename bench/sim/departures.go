package sim

// departure is when a request leaves its server.
type departure struct {
	at     float64
	server int32
}

// departures is the queue of events: a heap with four children per node, which share a cache line;
// it is half as deep as one with two.
type departures []departure

// push adds an event.
func (q *departures) push(d departure) {
	heap := append(*q, d)
	i := len(heap) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if heap[parent].at <= d.at {
			break
		}
		heap[i] = heap[parent]
		i = parent
	}
	heap[i] = d
	*q = heap
}

// pop removes and returns the first event; there must be one.
func (q *departures) pop() departure {
	heap := *q
	first, last := heap[0], heap[len(heap)-1]
	heap = heap[:len(heap)-1]
	*q = heap
	if len(heap) == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= len(heap) {
			break
		}
		for child := least + 1; child < min(4*i+5, len(heap)); child++ {
			if heap[child].at < heap[least].at {
				least = child
			}
		}
		if last.at <= heap[least].at {
			break
		}
		heap[i] = heap[least]
		i = least
	}
	heap[i] = last
	return first
}

// until reports whether the first event is due.
func (q departures) until(now float64) bool { return len(q) > 0 && q[0].at <= now }
