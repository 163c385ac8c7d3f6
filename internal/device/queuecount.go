package device

import "github.com/vishvananda/netlink"

// QueueCount returns how many receive queues an interface has.
func QueueCount(name string) (int, error) {
	if n, err := ReceiveQueues(name); err == nil && n > 0 {
		return int(n), nil
	}
	link, err := netlink.LinkByName(name) // a driver need not say it itself
	if err != nil {
		return 0, err
	}
	return link.Attrs().NumRxQueues, nil
}
