package device

import "github.com/vishvananda/netlink"

// QueueCount returns how many receive queues an interface has.
func QueueCount(link netlink.Link) (int, error) {
	name := link.Attrs().Name
	if now, _, err := ChannelsOf(name); err == nil && now.Receive+now.Combined > 0 {
		return int(now.Receive + now.Combined), nil
	}
	if n, err := ReceiveQueues(name); err == nil && n > 0 {
		return int(n), nil
	}
	return max(1, link.Attrs().NumRxQueues), nil // a driver need not say it
}

// DriverOf is the name of an interface's driver; "": the kernel does not say it.
func DriverOf(name string) string { return driverOf(name) }
