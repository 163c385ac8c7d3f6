package agent

// skContext is struct __sk_buff (linux/bpf.h) as BPF_PROG_TEST_RUN takes it: what
// it does not let a caller choose must be zero.
type skContext struct {
	Before   [164]byte
	GSOSegs  uint32
	Sk       uint64
	GSOSize  uint32
	TSType   uint32
	HWTStamp uint64
}
