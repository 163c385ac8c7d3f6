//go:build !emulated_nic

package steering

import "weir.io/weir/internal/device"

// nicOf is the NIC of an interface, by its driver.
func nicOf(name string) NIC { return device.NIC(name) }
