package sim

// servers are the servers, each with its workers and its queue. Waiting requests are not remembered
// one by one: a request's departure is known when it arrives, because the earlier ones are known,
// and no request overtakes another.
type servers struct {
	workers int
	free    []float64 // when each worker is, a heap for each server
	speed   []float64 // of each server's workers
}

func newServers(c *Config, weights []float64) *servers {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	s := &servers{workers: c.Workers, free: make([]float64, c.Servers*c.Workers), speed: make([]float64, c.Servers)}
	for i, w := range weights {
		s.speed[i] = w * float64(len(weights)) / sum
	}
	return s
}

// take returns when a request departs that arrives now and needs that much service.
func (s *servers) take(server int32, now, service float64) float64 {
	if s.workers == 0 {
		return now + service
	}
	free := s.free[int(server)*s.workers : (int(server)+1)*s.workers]
	departs := max(now, free[0]) + service/s.speed[server]
	down(free, departs)
	return departs
}

// down replaces the first of a heap.
func down(heap []float64, value float64) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(heap) {
			break
		}
		if child+1 < len(heap) && heap[child+1] < heap[child] {
			child++
		}
		if heap[child] >= value {
			break
		}
		heap[i] = heap[child]
		i = child
	}
	heap[i] = value
}
