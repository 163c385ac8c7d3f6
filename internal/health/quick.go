package health

import (
	"encoding/binary"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls that do not block, made without telling Go's scheduler: it assumes that each ordinary call
// may last, and looks every 20 us whether to give its processor to others. With thousands of short
// calls a second that costs more than some of the calls.

// quickly makes a call, in which a pointer may be the second argument.
func quickly(call, socket uintptr, pointer unsafe.Pointer, size uintptr) error {
	if _, _, errno := unix.RawSyscall(call, socket, uintptr(pointer), size); errno != 0 {
		return errno
	}
	return nil
}

// beginConnect begins to connect a socket that does not block.
func beginConnect(socket int, to netip.AddrPort) error {
	port := bigEndian(to.Port())
	if to.Addr().Is4() {
		address := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port, Addr: to.Addr().As4()}
		return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unix.SizeofSockaddrInet4)
	}
	address := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: to.Addr().As16()}
	return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unix.SizeofSockaddrInet6)
}

// disconnect ends a socket's connection by an RST, and makes it one that was never connected.
func disconnect(socket int) error {
	address := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	return quickly(unix.SYS_CONNECT, uintptr(socket), unsafe.Pointer(&address), unsafe.Sizeof(address))
}

// closeSocket closes a socket whose connection ends by an RST: it waits for nothing.
func closeSocket(socket int) { _ = quickly(unix.SYS_CLOSE, uintptr(socket), nil, 0) }

// rttOf is how long the kernel has waited for a SYN-ACK; 0: the kernel does not say.
func rttOf(socket int) time.Duration {
	var info unix.TCPInfo
	size := uint32(unsafe.Offsetof(info.Rtt) + unsafe.Sizeof(info.Rtt)) // fields after it are not copied
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(socket), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(info.Rtt) * time.Microsecond
}

func bigEndian(port uint16) uint16 {
	var bytes [2]byte
	binary.BigEndian.PutUint16(bytes[:], port)
	return binary.NativeEndian.Uint16(bytes[:])
}
