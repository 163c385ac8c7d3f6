package datapath

// The BPF objects are generated and committed; package abi has the types of the director's maps.
// CI fails when they differ from what the sources give.
//
//go:generate ../../bpf/generate -no-global-types director ../../bpf/director/director.bpf.c
//go:generate ../../bpf/generate -no-global-types vtep ../../bpf/director/vtep/vtep.bpf.c
//go:generate ../../bpf/generate -no-global-types natTC ../../bpf/director/nat/nat_tc.bpf.c
//go:generate ../../bpf/generate -output-dir checks -go-package checks -type check_way -type check_verdict check ../../bpf/small/check.bpf.c
//go:generate ../../bpf/generate -output-dir observe -go-package observe -no-global-types -type flow -type packet -type packet_flag -type observation observed ../../bpf/director/observe/observed.bpf.c
//go:generate ../../bpf/generate -output-dir observe -go-package observe -no-global-types -type capture_size -type capture_endpoint -type capture_filter -type capture_head -type capture_counts -type capture_record capture ../../bpf/director/observe/capture.bpf.c
//go:generate ../../bpf/generate -output-dir nexthop -go-package nexthop -no-global-types -type onward_mac onward ../../bpf/small/onward.bpf.c
