package datapath

// The BPF object and the Go side of bpf/types.h are generated and committed;
// CI fails when they differ from what the sources give.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type address -type endpoint4 -type endpoint6 -type front -type range4 -type range6 -type ring_header -type slot -type candidates -type mode -type backend_state -type backend_flag -type backend -type ring_flag -type settings_flag -type settings -type counter -type reason -type affinity -type policy -type fragment_key -type fragment -type snat_state -type snat_flow -type snat_bucket -type snat_header -type flow_state -type flow_timeout -type flow_event -type flow_tag -type flow_entry -type flow_bucket -type telling -type told_outcome -type tellings -type load -type load_scale -type turns -type turn -type quic_algorithm -type quic_event -type quic_config -type quic_servers -type peer -type group_slot director ../../bpf/director.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type check_way -type check_verdict check ../../bpf/check.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type flow -type packet -type packet_flag -type observation observed ../../bpf/observed.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
