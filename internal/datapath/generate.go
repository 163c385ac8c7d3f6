package datapath

// The BPF object and the Go side of bpf/abi/types.h are generated and committed;
// CI fails when they differ from what the sources give.
//
//go:generate ../../bpf/generate -type address -type endpoint4 -type endpoint6 -type front -type backend_source -type range4 -type range6 -type ring_header -type slot -type candidates -type mode -type backend_state -type backend_flag -type probe_priority -type backend -type ring_flag -type settings_flag -type settings -type counter -type reason -type affinity -type policy -type fragment_key -type fragment -type snat_state -type snat_proof -type asked_state -type ask_event -type ask_backend -type snat_asked -type snat_flow -type snat_bucket -type snat_header -type flow_state -type flow_timeout -type flow_event -type flow_tag -type flow_entry -type flow_bucket -type telling -type told_outcome -type tellings -type load -type load_scale -type turns -type turn -type quic_algorithm -type quic_event -type quic_config -type quic_servers -type peer -type group_slot director ../../bpf/director/director.bpf.c
//go:generate ../../bpf/generate -no-global-types natTC ../../bpf/director/nat/nat_tc.bpf.c
//go:generate ../../bpf/generate -type check_way -type check_verdict check ../../bpf/small/check.bpf.c
//go:generate ../../bpf/generate -no-global-types -type flow -type packet -type packet_flag -type observation observed ../../bpf/director/observe/observed.bpf.c
//go:generate ../../bpf/generate -no-global-types -type capture_size -type capture_endpoint -type capture_filter -type capture_head -type capture_counts -type capture_record capture ../../bpf/director/observe/capture.bpf.c
//go:generate ../../bpf/generate -no-global-types -type onward_mac onward ../../bpf/small/onward.bpf.c
