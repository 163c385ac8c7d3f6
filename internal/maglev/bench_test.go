package maglev

import (
	"fmt"
	"testing"
)

// benchMembers returns n members of equal or of different weights.
func benchMembers(n int, weighted bool) []Member {
	members := make([]Member, n)
	for i := range members {
		members[i] = Member{Key: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255), Weight: 100}
		if weighted {
			members[i].Weight = uint16(1 + i*37%200)
		}
	}
	return members
}

func benchmarkSizes(b *testing.B, run func(size uint32, members []Member), cases ...[2]int) {
	for _, c := range cases {
		for _, weighted := range []bool{false, true} {
			name := fmt.Sprintf("members=%d/slots=%d/weighted=%v", c[0], c[1], weighted)
			members := benchMembers(c[0], weighted)
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					run(uint32(c[1]), members)
				}
			})
		}
	}
}

func BenchmarkRing(b *testing.B) {
	benchmarkSizes(b, func(size uint32, members []Member) { Ring(size, members) },
		[2]int{3, 1021}, [2]int{64, 6421}, [2]int{1000, 65537}, [2]int{4000, 400009})
}

func BenchmarkRingAndBackups(b *testing.B) {
	benchmarkSizes(b, func(size uint32, members []Member) { RingAndBackups(size, members) },
		[2]int{3, 1021}, [2]int{64, 6421}, [2]int{10, 100003}, [2]int{1000, 100003}, [2]int{4000, 400009})
}

// BenchmarkBackups compares the two ways to find backups: see refillMembers.
func BenchmarkBackups(b *testing.B) {
	for _, n := range []int{3, 10, 24, 64, 256} {
		members := benchMembers(n, false)
		size := DefaultSize(n)
		b.Run(fmt.Sprintf("refill/members=%d", n), func(b *testing.B) {
			for b.Loop() {
				newFill(size, members).refill()
			}
		})
		b.Run(fmt.Sprintf("replay/members=%d", n), func(b *testing.B) {
			for b.Loop() {
				newFill(size, members).replay()
			}
		})
	}
}
