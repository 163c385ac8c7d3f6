package device

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue is struct ethtool_value (linux/ethtool.h).
type ethtoolValue struct {
	command, data uint32
}

// Ethtool reads one of the simple values of an interface, by its command (ETHTOOL_G...).
func Ethtool(name string, command uint32) (uint32, error) {
	value := ethtoolValue{command: command}
	err := ethtool(name, unsafe.Pointer(&value))
	return value.data, err
}

// SetEthtool sets one (ETHTOOL_S...).
func SetEthtool(name string, command, data uint32) error {
	return ethtool(name, unsafe.Pointer(&ethtoolValue{command, data}))
}

// ethtool works in the network namespace of the calling thread. What it is given begins with a command.
func ethtool(name string, command unsafe.Pointer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket for ethtool: %w", err)
	}
	defer unix.Close(fd)
	// struct ifreq: the name, then a union of 24 bytes whose first 8 point to the
	// command. The pointer keeps its type, so that the collector follows it.
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		pad  [16]byte
	}{data: command}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}

const getLink = 0x0a // ETHTOOL_GLINK (linux/ethtool.h)

// HasCarrier says whether a link can send. The kernel's flag "running" follows it up to a second later.
func HasCarrier(name string) bool {
	up, err := Ethtool(name, getLink)
	return err == nil && up != 0
}
