package netlab

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offload is what an interface does for the stack, to be on or off.
type offload struct {
	feature feature
	on      bool
}

// feature is one that ethtool can switch: by a command of its own, or by a bit
// of the flags (include/uapi/linux/ethtool.h).
type feature struct {
	name string
	set  uint32
	get  uint32
	flag uint32
}

var (
	sendChecksum      = feature{name: "tx checksum", set: unix.ETHTOOL_STXCSUM}
	receiveCoalescing = feature{name: "gro", set: unix.ETHTOOL_SGRO}
	sendTags          = feature{"txvlan", unix.ETHTOOL_SFLAGS, unix.ETHTOOL_GFLAGS, 1 << 7} // ETH_FLAG_TXVLAN
	receiveTags       = feature{"rxvlan", unix.ETHTOOL_SFLAGS, unix.ETHTOOL_GFLAGS, 1 << 8} // ETH_FLAG_RXVLAN
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct {
	command, data uint32
}

// setOffloads works in the calling thread's network namespace.
func setOffloads(dev string, offloads []offload) error {
	if len(offloads) == 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket for ethtool: %w", err)
	}
	defer unix.Close(fd)
	for _, o := range offloads {
		value := ethtoolValue{command: o.feature.set}
		if o.on {
			value.data = 1
		}
		if o.feature.get != 0 {
			flags := ethtoolValue{command: o.feature.get}
			if err := ethtool(fd, dev, &flags); err != nil {
				return fmt.Errorf("read flags for %s: %w", o.feature.name, err)
			}
			value.data = flags.data &^ o.feature.flag
			if o.on {
				value.data |= o.feature.flag
			}
		}
		if err := ethtool(fd, dev, &value); err != nil {
			return fmt.Errorf("switch %s: %w", o.feature.name, err)
		}
	}
	return nil
}

func ethtool(fd int, dev string, value *ethtoolValue) error {
	// struct ifreq: the name, then a union of 24 bytes whose first 8 point to the
	// command. The pointer keeps its type, so that the collector follows it.
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		pad  [16]byte
	}{data: unsafe.Pointer(value)}
	copy(request.name[:unix.IFNAMSIZ-1], dev)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}
