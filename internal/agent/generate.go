package agent

// The BPF object and the Go side of bpf/types.h are generated and committed;
// CI fails when they differ from what the sources give.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -output-stem host -type host_reason -type host_source_flag -type host_peer_flag -type host_service_flag -type row_header -type pod_sign -type pod_way_kind bpf ../../bpf/host.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type address -type redirect_event -type redirect_end -type redirect_syn_state -type redirect_number -type redirect_service_flag -type guard redirect ../../bpf/redirect.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
