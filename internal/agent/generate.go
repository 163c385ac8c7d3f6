package agent

// The BPF object and the Go side of bpf/abi/types.h are generated and committed;
// CI fails when they differ from what the sources give.
//
//go:generate ../../bpf/generate -output-stem host -type host_reason -type host_source_flag -type host_peer_flag -type host_service_flag -type row_header -type pod_sign -type pod_way_kind bpf ../../bpf/host/host.bpf.c
//go:generate ../../bpf/generate -type address -type redirect_event -type redirect_end -type redirect_syn_state -type redirect_number -type redirect_service_flag -type guard redirect ../../bpf/redirect/redirect.bpf.c
