// Package traffic is the two ends of a benchmark: a [Source] that sends packets as fast as one CPU
// can, or at a rate, and a [Sink] that counts them by backend and checks them. Both are XDP
// programs (lab/traffic/bpf/traffic.bpf.c); the kernel returns the source's frames to it when the sink has
// dropped them.
package traffic
