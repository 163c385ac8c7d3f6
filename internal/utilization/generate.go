package utilization

// The BPF object and its Go side are generated and committed; CI fails when they
// differ from what the source gives.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -output-stem utilization -type instance -type processor bpf ../../bpf/utilization.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
