package tune

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// sendOfQueues are drivers that send for XDP only from CPUs below the number of their queues, and drop what
// others send: mlx5e_xdp_xmit in drivers/net/ethernet/mellanox/mlx5/core/en/xdp.c, i40e_xdp_xmit in
// drivers/net/ethernet/intel/i40e/i40e_txrx.c.
var sendOfQueues = []string{"mlx5_core", "i40e"}

// FanOut returns the CPUs to which those of receive queues give packets: the last ones of the host, because
// drivers bind their queues to the first. With auto there are as many as the queues of the interface with the
// most of them leave; perhaps none. An error says why none gets packets that should.
func (h *Host) FanOut(f model.FanOut, interfaces []string) ([]uint32, error) {
	if !f.Given() {
		return nil, nil
	}
	online, most := h.OnlineCPUs(), 0
	queues := map[string]int{}
	for _, name := range interfaces {
		n, err := canFanOut(name)
		if err != nil {
			return nil, err
		}
		queues[name], most = n, max(most, n)
	}
	want := int(f.CPUs)
	if f.Auto {
		want = max(0, len(online)-most)
	}
	if want >= len(online) {
		return nil, fmt.Errorf("this host has %d CPUs: %d cannot get packets from the others", len(online), want)
	}
	cpus := online[len(online)-want:]
	for name, n := range queues {
		if driver := device.DriverOf(name); slices.Contains(sendOfQueues, driver) && len(cpus) > 0 && int(slices.Max(cpus)) >= n {
			return nil, fmt.Errorf("%s (%s) sends nothing from CPUs beyond the number of its queues, %d", name, driver, n)
		}
	}
	return cpus, nil
}

// canFanOut returns how many receive queues an interface has, if other CPUs can send by it.
func canFanOut(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s is not there when the director starts: %w", name, err)
	}
	switch {
	case link.Type() == "bond":
		return 0, fmt.Errorf("%s is a bond: packets come in by its members", name)
	case device.SendingOf(link) == device.Lost:
		return 0, errors.New(name + ": XDP cannot send by it what another CPU has handled")
	}
	return device.QueueCount(link)
}
