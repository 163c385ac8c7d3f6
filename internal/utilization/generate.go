package utilization

// The BPF object and its Go side are generated and committed; CI fails when they
// differ from what the source gives.
//
//go:generate ../../bpf/generate -output-stem utilization -type instance -type processor bpf ../../bpf/small/utilization.bpf.c
