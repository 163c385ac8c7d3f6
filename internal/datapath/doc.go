// Package datapath puts a model.Table into the kernel: it loads, pins and
// attaches bpf/director/director.bpf.c, switches its maps, keeps next hops fresh and
// reads its counters. It outlives its process: what is pinned keeps forwarding,
// and Open adopts it.
//
// It works on the network namespace of its process: goroutines that only some
// threads have taken elsewhere would ask the wrong kernel tables for next hops.
package datapath
