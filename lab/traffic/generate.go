package traffic

//go:generate ../../bpf/generate -no-global-types -type arrival_shape -type arrival_problem -type arrival -type expectation -type evidence traffic bpf/traffic.bpf.c
