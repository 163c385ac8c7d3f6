package traffic

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -no-global-types -type arrival_shape -type arrival_problem -type arrival -type expectation -type evidence traffic ../../bpf/traffic.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu
