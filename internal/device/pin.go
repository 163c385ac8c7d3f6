package device

import "strings"

// Names in BPF file systems have no dots, but interface names may, as those of VLANs and overlays
// mostly do; interface names have no colons (dev_valid_name in net/core/dev.c).

// PinName is an interface's name as the names of pins have it.
func PinName(name string) string { return strings.ReplaceAll(name, ".", ":") }

// PinnedInterface is the interface that has this PinName.
func PinnedInterface(pinName string) string { return strings.ReplaceAll(pinName, ":", ".") }
