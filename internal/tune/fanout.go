package tune

import (
	"cmp"
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

func (n *nic) sendsOfQueues() bool { return slices.Contains(sendOfQueues, n.driver) }

// FanOut returns the CPUs to which those of receive queues give packets. With auto there are as many as the
// queues of the interface with the most of them leave; perhaps none. An error says why none gets packets that
// should.
func (h *Host) FanOut(f model.FanOut, interfaces []string) ([]uint32, error) {
	if !f.Given() {
		return nil, nil
	}
	most, nodes := 0, map[int]bool{}
	queues := map[string]int{}
	for _, name := range interfaces {
		n, err := queuesOf(name)
		if err != nil {
			return nil, err
		}
		queues[name], most = n, max(most, n)
		if device, err := h.NIC(name).Device(); err == nil {
			nodes[h.nodeOf(h.sysfs(name, device))] = true
		}
	}
	cpus, err := h.cpus().usable().others(f, most, nodes)
	if err != nil || len(cpus) == 0 {
		return nil, err
	}
	for name, n := range queues {
		if err := sendsFromAll(name); err != nil {
			return nil, err
		}
		if driver := device.DriverOf(name); slices.Contains(sendOfQueues, driver) && int(slices.Max(cpus)) >= n {
			return nil, fmt.Errorf("%s (%s) sends only from CPUs below the number of its queues, %d, and CPU %d would get packets", name, driver, n, slices.Max(cpus))
		}
	}
	return cpus, nil
}

// others chooses CPUs for packets. The first ones of the NICs' nodes, and then of other nodes, are for the
// queues, and of the rest the last ones get packets, those of the NICs' nodes first.
func (t topology) others(f model.FanOut, queues int, nodes map[int]bool) (cpus []uint32, err error) {
	want := int(f.CPUs)
	if f.Auto {
		want = max(0, len(t)-queues)
	}
	if want >= len(t) {
		return nil, fmt.Errorf("director.fan-out is %d, and this host has %s for packets, of which one at least serves the receive queues", want, count(len(t), "CPU"))
	}
	away := func(c cpu) int {
		if len(nodes) == 0 || nodes[-1] || nodes[c.node] {
			return 0
		}
		return 1
	}
	t = slices.Clone(t)
	slices.SortFunc(t, func(a, b cpu) int { return cmp.Or(cmp.Compare(away(a), away(b)), cmp.Compare(a.number, b.number)) })
	rest := t[min(queues, len(t)-want):] // one may ask for more than queues leave
	slices.SortFunc(rest, func(a, b cpu) int { return cmp.Or(cmp.Compare(away(a), away(b)), cmp.Compare(b.number, a.number)) })
	for _, c := range rest[:want] {
		cpus = append(cpus, uint32(c.number))
	}
	slices.Sort(cpus)
	return cpus, nil
}

// queuesOf returns how many receive queues an interface has.
func queuesOf(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s is not there when the director starts: %w", name, err)
	}
	if link.Type() == "bond" {
		return 0, fmt.Errorf("%s is a bond: packets come in by its members", name)
	}
	return device.QueueCount(link)
}

// sendsFromAll says why other CPUs cannot send by an interface; nil: they can.
func sendsFromAll(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil || device.SendingOf(link) != device.Lost {
		return err
	}
	why := ""
	if link.Type() == "veth" {
		why = " (its other end needs an XDP program or GRO, and as many receive queues as this end has send queues)"
	}
	return fmt.Errorf("%s (%s) does not send what XDP redirects to it%s", name, link.Type(), why)
}
