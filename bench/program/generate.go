package program

//go:generate ../../bpf/generate -no-global-types bench ../bpf/bench.bpf.c
//go:generate ../../bpf/generate -no-global-types again ../bpf/again.bpf.c
