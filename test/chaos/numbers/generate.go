package numbers

//go:generate ../../../bpf/generate -no-global-types numbers bpf/numbers.bpf.c
