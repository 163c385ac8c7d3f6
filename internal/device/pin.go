package device

import "strings"

// BPF file systems have no dots in names, which interfaces may have, as those of VLANs and overlays
// mostly do; interfaces have no colons (dev_valid_name in net/core/dev.c).

// PinName is what an interface is called in the names of pins.
func PinName(name string) string { return strings.ReplaceAll(name, ".", ":") }

// PinnedInterface is the interface that is called so there.
func PinnedInterface(pinName string) string { return strings.ReplaceAll(pinName, ":", ".") }
