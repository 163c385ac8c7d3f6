// Package bpfload has what loaders of BPF programs do alike: it reads enums, says why the kernel
// refuses a program, and maps arrays into memory.
package bpfload

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Constants is the map of a program's constants. Each program has its own, and nothing else needs it:
// it is neither pinned nor part of an ABI.
const Constants = ".rodata"

// EnumNames are the names of an enum's values up to the one that counts them, in lower case and
// without a prefix. They are the labels of metrics, and are written only in bpf/abi.
func EnumNames(types *btf.Spec, name, prefix string) ([]string, error) {
	var enum *btf.Enum
	if err := types.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	var names []string
	for _, v := range enum.Values {
		if strings.HasSuffix(v.Name, "_COUNT") {
			break
		}
		names = append(names, strings.ToLower(strings.TrimPrefix(v.Name, prefix)))
	}
	return names, nil
}

// Error says what a program or map that the kernel refuses to a director most likely means.
func Error(err error) error {
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier):
		return fmt.Errorf("load director program: the kernel's verifier refuses it: %w", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("load director program: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: %w", err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("load director program: this kernel has no BPF (CONFIG_BPF_SYSCALL): %w", err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		return fmt.Errorf("create maps: the kernel refuses their memory; lower director.limits (services, backends, ring-memory, fragments, flows): %w", err)
	}
	return fmt.Errorf("load director program: %w", err)
}

// Memory is an array map as memory that this process shares with the programs: changes are stores,
// without a system call. The zero value is no memory.
type Memory[T any] struct {
	Bytes   []byte
	Entries []T
}

// Map maps an array into memory.
func Map[T any](m *ebpf.Map) (Memory[T], error) {
	bytes, err := unix.Mmap(m.FD(), 0, int(m.MaxEntries())*int(m.ValueSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return Memory[T]{}, fmt.Errorf("map %v into memory: %w", m, err)
	}
	entries := unsafe.Slice((*T)(unsafe.Pointer(&bytes[0])), len(bytes)/int(unsafe.Sizeof(*new(T))))
	return Memory[T]{bytes, entries}, nil
}

// Close lets go of the memory. It does nothing the second time.
func (m *Memory[T]) Close() error {
	if m.Bytes == nil {
		return nil
	}
	err := unix.Munmap(m.Bytes)
	m.Bytes, m.Entries = nil, nil
	if err != nil {
		return fmt.Errorf("unmap an array: %w", err)
	}
	return nil
}
