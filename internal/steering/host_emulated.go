//go:build emulated_nic

package steering

import (
	"weir.io/weir/internal/device"
	"weir.io/weir/lab/nic"
)

// nicOf is the NIC of an interface, in a weir for labs: veths have no flow table, and package nic gives them one.
func nicOf(name string) NIC {
	if card := nic.Find(name); card != nil {
		return card
	}
	return device.NIC(name)
}
