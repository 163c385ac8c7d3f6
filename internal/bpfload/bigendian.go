//go:build armbe || arm64be || m68k || mips || mips64 || mips64p32 || ppc || ppc64 || s390 || s390x || sparc || sparc64

package bpfload

// This does not compile, so that a build for such a machine ends with the reason.
const _ = weir_has_BPF_objects_for_little_endian_machines_only
