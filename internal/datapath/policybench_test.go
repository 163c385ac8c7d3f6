package datapath

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"weir.io/weir/internal/model"
)

// BenchmarkPolicies runs SYNs of one service whose policy is asked for each: no memory is,
// and the backend is this host, so that the frame stays as it is. On one CPU, and on all at
// once, which share whose turn it is and what is open where.
func BenchmarkPolicies(b *testing.B) {
	const backends = 16
	for _, policy := range []model.Policy{model.Maglev, model.Random, model.RoundRobin, model.LeastConn} {
		for _, cpus := range []int{1, runtime.NumCPU()} {
			b.Run(fmt.Sprintf("%v, %d CPUs", policy, cpus), func(b *testing.B) {
				w, s := amongAll(policy, true, backends)
				s.testService.memory, s.testService.settling = false, false
				for i := range uint32(backends) {
					s.backends[i].local, s.testService.ring.Turns = true, append(s.testService.ring.Turns, i)
				}
				d := loadTestDirector(b, w)
				frame := build(ip(s.client, s.vip), s.segment4(clientPort, servicePort, synFlag))
				var group sync.WaitGroup
				sum := make([]float64, cpus)
				for cpu := range cpus {
					group.Go(func() {
						onCPU(b, cpu, func() {
							action, took, err := d.program.Benchmark(frame, b.N, nil)
							if err != nil || action != xdpPass {
								b.Errorf("verdict %d: %v", action, err)
							}
							sum[cpu] = float64(took.Nanoseconds())
						})
					})
				}
				group.Wait()
				mean := 0.0
				for _, ns := range sum {
					mean += ns / float64(cpus)
				}
				b.ReportMetric(mean, "program-ns/SYN")
			})
		}
	}
}
