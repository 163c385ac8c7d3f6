package tune

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
)

// The cards of guests that test/kernels boots with -nics, by their addresses.
const (
	virtio  = "02:77:65:69:72:00"
	vmxnet3 = "02:77:65:69:72:01"
	e1000e  = "02:77:65:69:72:02"
)

// cards returns the names of a guest's cards by address.
func cards(t *testing.T) map[string]string {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, l := range links {
		names[l.HardwareAddr.String()] = l.Name
	}
	if names[virtio] == "" {
		t.Skip("make test-tune runs this in a guest that has the cards")
	}
	return names
}

// cardState is what drivers and the kernel say of a card, and of its interrupts, not read by what is tested.
func cardState(t *testing.T, name string) map[string]string {
	t.Helper()
	all := map[string]string{}
	add := func(what string, value any, err error) {
		if err == nil {
			all[what] = fmt.Sprint(value)
		}
	}
	channels, _, err := device.ChannelsOf(name)
	add("channels", channels, err)
	rings, _, err := device.RingsOf(name)
	add("rings", rings, err)
	table, err := device.Indirection(name)
	add("table", table, err)
	for _, packets := range []uint32{device.HashedUDP4, device.HashedUDP6} {
		fields, err := device.HashFieldsOf(name, packets)
		add(fmt.Sprint("hash ", packets), fields, err)
	}
	for _, irq := range irqsOf(t, name) {
		affinity, err := os.ReadFile(filepath.Join("/proc/irq", irq, "smp_affinity_list"))
		add("irq "+irq, strings.TrimSpace(string(affinity)), err)
	}
	return all
}

// irqsOf returns the interrupts of a card's PCI device.
func irqsOf(t *testing.T, name string) (irqs []string) {
	t.Helper()
	for _, pattern := range []string{"device/msi_irqs/*", "device/../msi_irqs/*"} {
		found, err := filepath.Glob(filepath.Join("/sys/class/net", name) + "/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			irqs = append(irqs, filepath.Base(path))
		}
	}
	if len(irqs) == 0 {
		t.Fatalf("%s has no interrupts", name)
	}
	return irqs
}

// Drivers of network cards are set as the survey says, and nothing is amiss then; and all of it is restored.
func TestNICs(t *testing.T) {
	names := cards(t)
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// As a host may have them: few queues with unequal shares, small rings, no ports in the hash, and one CPU
	// that serves all; the card is on the second node.
	eth := names[virtio]
	numa, err := filepath.Glob("/sys/class/net/" + eth + "/device/../numa_node")
	if err != nil || len(numa) != 1 {
		t.Fatal(numa, err)
	}
	try(os.WriteFile(numa[0], []byte("1"), 0o644))
	try(device.SetChannels(eth, device.Channels{Combined: 2}))
	try(device.SetRings(eth, device.Rings{Receive: 256, Send: 64}))
	table, err := device.Indirection(eth)
	try(err)
	for i := range table {
		table[i] = uint32(min(i%4, 1))
	}
	try(device.SetIndirection(eth, table))
	try(device.SetHashFields(eth, device.HashedUDP4, device.HashAddresses))
	before := map[string]map[string]string{}
	all := []string{eth, names[vmxnet3], names[e1000e]}
	for _, name := range all {
		try(setUp(name))
		for _, irq := range irqsOf(t, name) {
			try(os.WriteFile(filepath.Join("/proc/irq", irq, "smp_affinity_list"), []byte("0"), 0o644))
		}
		before[name] = cardState(t, name)
	}
	dir := t.TempDir()
	store := Store{Path: filepath.Join(dir, RecordName), Write: func(text []byte) error {
		return os.WriteFile(filepath.Join(dir, RecordName), text, 0o600)
	}}

	changes, err := This().Apply(all, Options{}, store)
	try(err)
	for _, c := range changes {
		t.Log(c.String())
		if c.Result != Set {
			t.Errorf("%s", c.String())
		}
	}
	if now, most, err := device.ChannelsOf(eth); err != nil || now.Combined != 4 || most.Combined != 4 {
		t.Errorf("virtio has queues %+v of %+v (%v)", now, most, err)
	}
	for _, name := range all {
		if now, most, err := device.RingsOf(name); err != nil || now != most {
			t.Errorf("%s has rings %+v of %+v (%v)", name, now, most, err)
		}
	}
	for _, packets := range []uint32{device.HashedUDP4, device.HashedUDP6} {
		if fields, err := device.HashFieldsOf(eth, packets); err != nil || fields&device.HashPorts != device.HashPorts {
			t.Errorf("virtio hashes %#x (%v)", fields, err)
		}
	}
	for _, name := range []string{eth, names[vmxnet3]} {
		if table, err := device.Indirection(name); err != nil || !isEven(table, upTo(4)) {
			t.Errorf("%s has table %v (%v)", name, table, err)
		}
		cpus := map[string]bool{}
		for what, cpu := range cardState(t, name) {
			if strings.HasPrefix(what, "irq ") && !exists(filepath.Join("/proc/irq", what[4:], "virtio0-config")) {
				cpus[cpu] = true
			}
		}
		if got := len(cpus); got < 4 {
			t.Errorf("the 4 queues of %s are served by %d CPUs: %v", name, got, cpus)
		}
	}
	parts, err := This().Survey(all, Options{})
	try(err)
	for _, p := range parts {
		if len(AmissIn([]Part{p})) > 0 {
			t.Errorf("afterwards %s is amiss: %s", p.Check(), p.Text)
		}
	}
	if !slices.ContainsFunc(parts, func(p Part) bool { return p.Kind == NUMA }) {
		t.Error("nothing is said about the NUMA nodes")
	}
	if again, err := This().Apply(all, Options{}, store); err != nil || len(again) > 0 {
		t.Errorf("another time it changes %v (%v)", again, err)
	}

	changes, _, err = This().Undo(store)
	try(err)
	for _, c := range changes {
		if c.Result != Restored {
			t.Errorf("%s", c.String())
		}
	}
	for _, name := range all {
		if diff := cmp.Diff(before[name], cardState(t, name)); diff != "" {
			t.Errorf("undo leaves of %s (-before +after):\n%s", name, diff)
		}
	}
}

// setUp sets an interface up: some drivers have interrupts only then.
func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}
