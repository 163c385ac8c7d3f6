package netlab

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/device"
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

// setOffloads works in the calling thread's network namespace.
func setOffloads(dev string, offloads []offload) error {
	for _, o := range offloads {
		value := uint32(0)
		if o.on {
			value = 1
		}
		if o.feature.get != 0 {
			flags, err := device.Ethtool(dev, o.feature.get)
			if err != nil {
				return fmt.Errorf("read flags for %s: %w", o.feature.name, err)
			}
			value = flags &^ o.feature.flag
			if o.on {
				value |= o.feature.flag
			}
		}
		if err := device.SetEthtool(dev, o.feature.set, value); err != nil {
			return fmt.Errorf("switch %s: %w", o.feature.name, err)
		}
	}
	return nil
}
