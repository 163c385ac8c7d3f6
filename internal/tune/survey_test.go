package tune

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
)

// survey returns what is said, by check.
func (m *machine) survey(o Options, names ...string) map[string]Part {
	m.t.Helper()
	parts, err := m.host().Survey(names, o)
	if err != nil {
		m.t.Fatal(err)
	}
	found := map[string]Part{}
	for _, p := range parts {
		if _, twice := found[p.Check()]; twice {
			m.t.Errorf("two parts are about %s", p.Check())
		}
		if strings.Contains(p.Text+p.Fix, "\n") {
			m.t.Errorf("%s has more than a line: %q", p.Check(), p.Text)
		}
		found[p.Check()] = p
	}
	return found
}

// says checks one part.
func says(t *testing.T, found map[string]Part, check string, amiss bool, text string) {
	t.Helper()
	p, is := found[check]
	if !is {
		t.Errorf("nothing is said about %s", check)
		return
	}
	if p.Amiss != amiss || p.Text != text {
		t.Errorf("about %s it says, amiss %v,\n  %s\nwant, amiss %v,\n  %s", check, p.Amiss, p.Text, amiss, text)
	}
}

func TestSurveyOfAServerAsItComes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	found := m.survey(Options{}, "eth0")
	says(t, found, "queues eth0", true, "4 receive queues for 16 CPUs")
	says(t, found, "rings eth0", true, "queues hold 512 packets that come, of at most 4096, and 512 that leave, of at most 4096")
	says(t, found, "rss eth0", false, "RSS uses queues 0-3 evenly")
	says(t, found, "hash eth0", true, "addresses and ports of udp4 and udp6 do not all take part in RSS: all packets between two hosts come to one queue")
	says(t, found, "interrupts eth0", true, "4 receive queues are served by CPU 0 (1 core of 8), 4 of them by those of another NUMA node than the NIC's, 1; better by CPUs 4-7")
	says(t, found, "threaded eth0", false, "softirqs serve the queues, and no threads")
	says(t, found, "governor", true, "the CPUs' frequency is lowered while there are few packets: schedutil")
	says(t, found, "numa", false, "eth0 is on node 1, with CPUs 4-7,12-15")
	if len(found) != 8 {
		t.Errorf("it says %d things: %v", len(found), found)
	}
}

// What keeps packets from the CPUs, and is another program's or the operator's, is told with what to do.
func TestSurveyTellsOfOthers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	m.write("sys/class/net/eth0/threaded", "1")
	m.write("sys/class/net/eth0/napi_defer_hard_irqs", "2")
	m.write("sys/class/net/eth0/gro_flush_timeout", "200000")
	m.write("proc/sys/net/core/busy_read", "50")
	for pid, is := range map[int][3]string{100: {"irqbalance", "irqbalance", "0-15"}, 200: {"weir", "weir\x00run\x00-c\x00x", "0-15"}, 201: {"weir", "weir\x00bfd", "0-15"},
		300: {"napi/eth0-8193", "", "4"}, 301: {"napi/eth0-8194", "", "0-15"}, 302: {"napi/eth01-8", "", "0-15"}} {
		m.write(fmt.Sprintf("proc/%d/comm", pid), is[0])
		m.write(fmt.Sprintf("proc/%d/cmdline", pid), is[1])
		m.write(fmt.Sprintf("proc/%d/status", pid), "Name:\t"+is[0]+"\nCpus_allowed_list:\t"+is[2])
	}
	found := m.survey(Options{}, "eth0")
	says(t, found, "irqbalance", true, "runs (process 100), and may move interrupts to other CPUs")
	says(t, found, "numa", true, "eth0 is on node 1, with CPUs 4-7,12-15; weir run (process 200) may run on CPUs 0-15, and its maps are on the node where it has started")
	says(t, found, "threaded eth0", true, "2 threads serve the queues (threaded NAPI), and 1 of them may run on any CPU, wherever the queue's interrupt comes")
	says(t, found, "deferral eth0", true, "packets wait up to 200000 ns for a timer instead of an interrupt (napi_defer_hard_irqs 2, gro_flush_timeout)")
	says(t, found, "busy polling", true, "processes poll for packets of their sockets, on CPUs that packets need (net.core.busy_read=50)")
	for _, check := range []string{"irqbalance", "numa", "threaded eth0", "deferral eth0", "busy polling"} {
		if found[check].Fix == "" {
			t.Errorf("nothing is said of what to do about %s", check)
		}
	}
	m.write("proc/200/status", "Cpus_allowed_list:\t4-7")
	says(t, m.survey(Options{}, "eth0"), "numa", false, "eth0 is on node 1, with CPUs 4-7,12-15")
}

// An interface of another network namespace with the same name is not what sysfs shows.
func TestSysfsOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	m.write("sys/class/net/eth0/address", "02:00:00:00:00:99")
	found := m.survey(Options{}, "eth0")
	for _, check := range []string{"interrupts eth0", "threaded eth0", "numa"} {
		if p, is := found[check]; is {
			t.Errorf("it says of another interface: %s: %s", check, p.Text)
		}
	}
	says(t, found, "queues eth0", true, "4 receive queues for 16 CPUs")
}

func TestSurveyOfABondIsOfItsMembers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 16)
	m.addCard("eth1", 0, 16)
	bond := m.addCard("bond0", -1, 16)
	m.write(strings.Replace("sys/class/net/NAME/bonding/slaves", "NAME", bond.name, 1), "eth0 eth1")
	found := m.survey(Options{}, "bond0", "eth0")
	for check, want := range map[string]bool{"queues eth0": true, "queues eth1": true, "queues bond0": false} {
		if _, is := found[check]; is != want {
			t.Errorf("it says something about %s: %v, want %v", check, is, want)
		}
	}
}

// Queues that only rules lead to stay out of RSS, and there are enough queues for them.
func TestReservedQueues(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 16)
	found := m.survey(Options{Reserved: map[string][]uint32{"eth0": {14, 15}, "eth1": {1}}}, "eth0")
	says(t, found, "rss eth0", true, "RSS uses queues 0-15, and not queues 0-13 evenly")
	got, err := parseTable(found["rss eth0"].Settings[0].Want)
	if err != nil || len(got) != 128 || !isEven(got, upTo(14)) {
		t.Errorf("RSS is to use %v (%v)", got, err)
	}
	if command := found["rss eth0"].Settings[0].Command(found["rss eth0"].Settings[0].Want); command != "ethtool -X eth0 equal 14" {
		t.Errorf("by hand it is %s", command)
	}
	reserved := []uint32{0, 5}
	found = m.survey(Options{Reserved: map[string][]uint32{"eth0": reserved}}, "eth0")
	if command := found["rss eth0"].Settings[0].Command(found["rss eth0"].Settings[0].Want); command != "ethtool -X eth0 weight 0 1 1 1 1 0 1 1 1 1 1 1 1 1 1 1" {
		t.Errorf("by hand it is %s", command)
	}
	c.most.Combined, c.now.Combined = 64, 4
	c.makeQueues()
	if p := m.survey(Options{Reserved: map[string][]uint32{"eth0": {19}}}, "eth0")["queues eth0"]; p.Settings[0].Want != "combined 20" {
		t.Errorf("it wants %s", p.Settings[0].Want)
	}
	c.now.Combined, c.most.Combined = 2, 2
	c.makeQueues()
	says(t, m.survey(Options{Reserved: map[string][]uint32{"eth0": {0, 1}}}, "eth0"), "rss eth0", true, "all queues are for flows with a rule: RSS has none left")
}

// Interrupts that are spread well stay, wherever they are: also those on CPUs that are isolated for it.
func TestGoodInterruptsStay(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.addCard("eth0", 1, 4)
	for q, cpu := range []string{"7", "14", "5", "12"} {
		m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", c.irqs[q]), cpu)
	}
	m.write("sys/devices/system/cpu/isolated", "7")
	says(t, m.survey(Options{}, "eth0"), "interrupts eth0", false, "4 receive queues are served by CPUs 5,7,12,14 (4 cores of 8), 0 of them by those of another NUMA node than the NIC's, 1")
	m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", c.irqs[1]), "15") // 7's sibling, while cores of the node idle
	says(t, m.survey(Options{}, "eth0"), "interrupts eth0", true,
		"4 receive queues are served by CPUs 5,7,12,15 (3 cores of 8), 0 of them by those of another NUMA node than the NIC's, 1; better by CPUs 4-6,15")
}

// A queue gets a core of its own as long as there is one, on the NIC's node first; siblings come last. So it
// is on every machine.
func TestPlacement(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		threads, cores, nodes := 1+random.IntN(2), 1+random.IntN(8), 1+random.IntN(3)
		var s survey
		for number := range threads * cores * nodes {
			core := number % (cores * nodes)
			s.cpus = append(s.cpus, cpu{number: number, core: core, node: core / cores})
		}
		var now spread
		for range 1 + random.IntN(3) {
			s.nics = append(s.nics, &nic{node: random.IntN(nodes)})
			queues := map[int]int{}
			for q := range 1 + random.IntN(2*len(s.cpus)) {
				queues[q] = s.cpus[random.IntN(len(s.cpus))].number
			}
			now = append(now, queues)
		}
		best := s.place(now)
		if again := s.place(best); !cmp.Equal(again, best) {
			t.Fatalf("a placed spread is placed anew: %v, then %v", best, again)
		}
		for i, queues := range best {
			perCPU, perCore, off := map[int]int{}, map[int]int{}, 0
			for _, number := range queues {
				c, _ := s.cpus.find(number)
				perCPU[number]++
				perCore[c.core]++
				off += s.nics[i].away(c)
			}
			n := len(now[i])
			switch {
			case len(queues) != n:
				t.Fatalf("%d queues have a CPU, of %d", len(queues), n)
			case len(perCPU) != min(n, len(s.cpus)):
				t.Fatalf("%d queues are on %d of %d CPUs", n, len(perCPU), len(s.cpus))
			case len(perCore) != min(n, cores*nodes):
				t.Fatalf("%d queues are on %d of %d cores", n, len(perCore), cores*nodes)
			case len(s.nics) == 1 && off != max(0, min(n, cores*nodes)-cores) && n <= cores*nodes:
				t.Fatalf("%d queues, of which %d are off the NIC's node of %d cores", n, off, cores)
			}
		}
	}
}

// A queue stays where it is if another CPU is no better, and a NIC with one queue is told of what it lacks.
func TestNoNeedlessMoves(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4)
	c := m.addCard("eth1", 0, 4)
	for q, cpu := range []string{"3", "0", "1", "2"} {
		m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", c.irqs[q]), cpu)
	}
	found := m.survey(Options{}, "eth0", "eth1")
	says(t, found, "interrupts eth1", false, "4 receive queues are served by CPUs 0-3 (4 cores of 8), 0 of them by those of another NUMA node than the NIC's, 0")
	if got := len(AmissIn([]Part{found["interrupts eth0"]})); got != 4 {
		t.Errorf("%d interrupts of eth0 are to move, want 4", got)
	}
	c.now.Combined, c.most.Combined = 1, 1
	c.makeQueues()
	says(t, m.survey(Options{}, "eth1"), "queues eth1", true, "1 receive queue for 16 CPUs, and it can have no more")
}

// Interfaces share the CPUs: each has a CPU of its own as long as there is one.
func TestInterfacesShareCPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 0, 4)
	m.addCard("eth1", 0, 4)
	found := m.survey(Options{}, "eth0", "eth1")
	var cpus []string
	for _, check := range []string{"interrupts eth0", "interrupts eth1"} {
		for _, s := range found[check].Settings {
			cpus = append(cpus, strings.ReplaceAll(s.Want, "0-15", "0")) // which may come to any, and comes to 0, stays
		}
	}
	slices.Sort(cpus)
	if want := []string{"0", "1", "2", "3", "4", "5", "6", "7"}; !cmp.Equal(cpus, want) {
		t.Errorf("8 queues of two interfaces want CPUs %v", cpus)
	}
}

func TestInterruptsOfDrivers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		action, name string
		queue        int // -1: of none
		receives     bool
	}{
		{"virtio2-input.3", "eth0", 3, true},
		{"virtio2-output.3", "eth0", 3, false},
		{"virtio2-config", "eth0", -1, false},
		{"eth0-TxRx-11", "eth0", 11, true},
		{"i40e-enp59s0f0-TxRx-2", "enp59s0f0", 2, true},
		{"i40e-0000:3b:00.0:misc", "enp59s0f0", -1, false},
		{"i40e-0000:3b:00.0:fdir-TxRx-0", "enp59s0f0", -1, false},
		{"ice-ens1f0-TxRx-7", "ens1f0", 7, true},
		{"mlx5_comp5@pci:0000:3b:00.0", "ens1f0np0", 5, true},
		{"mlx5_async0@pci:0000:3b:00.0", "ens1f0np0", -1, false},
		{"ens5-Tx-Rx-1", "ens5", 1, true},
		{"ena-mgmnt@pci:0000:00:05.0", "ens5", -1, false},
		{"ens192-rxtx-0", "ens192", 0, true},
		{"ens192-event-8", "ens192", -1, false},
		{"enp1s0-rx-1", "enp1s0", 1, true},
		{"enp1s0-tx-1", "enp1s0", 1, false},
		{"enp1s0", "enp1s0", -1, false},
		{"eth0 (queue 3)", "eth0", 3, true},
		{"mana_q2@pci:7870:00:00.0", "eth0", 2, true},
		{"mana_hwc@pci:7870:00:00.0", "eth0", -1, false},
		{"gve-ntfy-blk4@pci:0000:00:04.0", "ens4", 4, true},
		{"gve-ntfy-blk16@pci:0000:00:04.0", "ens4", 4, true}, // of sending
	} {
		queue, receives, is := queueOf(test.action, test.name, 12)
		if is != (test.queue >= 0) || is && (queue != test.queue || receives != test.receives) {
			t.Errorf("%s of %s: queue %d, receives %v, is one %v; want %d, %v", test.action, test.name, queue, receives, is, test.queue, test.receives)
		}
	}
}

func TestListsOfCPUs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]int{"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "": nil, "3-1": nil, "x": nil, "0-99999999": nil, "1,": nil} {
		if got := parseList(text); !cmp.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	if got := list([]int{8, 1, 0, 2, 2, 10}); got != "0-2,8,10" {
		t.Errorf("a list is written as %s", got)
	}
}

// What is written in the record is read as it was.
func TestValuesAsText(t *testing.T) {
	t.Parallel()
	for _, fields := range []device.HashFields{0, device.HashAddresses, device.HashAddresses | device.HashPorts, 1 << 1, 1<<2 | 1<<3, 1<<31 | 1<<4} {
		if got, err := parseHash(hashText(fields)); got != fields || err != nil {
			t.Errorf("%#x is %s, and that is %#x (%v)", fields, hashText(fields), got, err)
		}
	}
	if hashText(device.HashAddresses|device.HashPorts) != "sdfn" {
		t.Error("addresses and ports are not sdfn")
	}
	table := []uint32{3, 0, 1, 1}
	if got, err := parseTable(tableText(table)); !cmp.Equal(got, table) || err != nil {
		t.Errorf("%v is read as %v (%v)", table, got, err)
	}
	if got, want := showTable(tableText(table)), "1 of queue 0, 2 of queue 1, 1 of queue 3"; got != want {
		t.Errorf("a table is shown as %q, want %q", got, want)
	}
	for _, bad := range []string{"", "1 x", "-1"} {
		if _, err := parseTable(bad); err == nil {
			t.Errorf("%q is taken for a table", bad)
		}
	}
	var n uint32
	for _, bad := range []string{"rx", "ry 1", "rx -1", "rx 4294967296"} {
		if err := parseNumbers(bad, map[string]*uint32{"rx": &n}); err == nil {
			t.Errorf("%q is taken for numbers", bad)
		}
	}
}

// Drivers that send only from CPUs below the number of their queues lose what comes to others, by another NIC.
func TestCPUsFromWhichADriverSendsNothing(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 4) // on CPUs 4-7
	inner := m.addCard("eth1", 0, 4)
	inner.most.Combined = 4
	bind := func(first int) {
		for q, irq := range m.cards["eth0"].irqs {
			m.write(fmt.Sprintf("proc/irq/%d/smp_affinity_list", irq), fmt.Sprint(first+q))
		}
	}
	m.cards["eth0"].most.Combined = 4
	bind(4)
	if found := m.survey(Options{}, "eth0", "eth1"); found["interrupts eth0"].Amiss {
		t.Errorf("where all CPUs send it says %s", found["interrupts eth0"].Text)
	}
	inner.driver = "mlx5_core"
	found := m.survey(Options{}, "eth0", "eth1")
	says(t, found, "interrupts eth0", true, "4 receive queues are served by CPUs 4-7 (4 cores of 8), 0 of them by those of another NUMA node than the NIC's, 1; better by CPUs 0-3; eth1 (mlx5_core) sends only what comes to CPUs below 4, the number of its queues, and loses the rest")
	if found["interrupts eth0"].Fix == "" {
		t.Error("nothing is said of what to do")
	}
	m.apply(Options{}, "eth0", "eth1")
	if found := m.survey(Options{}, "eth0", "eth1"); found["interrupts eth0"].Amiss || found["interrupts eth1"].Amiss {
		t.Errorf("afterwards it says %s; %s", found["interrupts eth0"].Text, found["interrupts eth1"].Text)
	}
	// One arm sends by the queue that a packet has come by.
	inner.driver, m.cards["eth0"].driver = "", "mlx5_core"
	bind(4)
	if found := m.survey(Options{}, "eth0"); found["interrupts eth0"].Amiss {
		t.Errorf("of one arm it says %s", found["interrupts eth0"].Text)
	}
}

// Packets are given to the last CPUs of the NICs' nodes, then to those of other nodes, and never to isolated ones.
func TestCPUsThatGetPackets(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write("sys/devices/system/cpu/isolated", "7,15")
	for _, c := range []struct {
		f      model.FanOut
		queues int
		nodes  []int
		want   []uint32
	}{
		{model.FanOut{CPUs: 2}, 4, []int{1}, []uint32{13, 14}},
		{model.FanOut{CPUs: 2}, 4, []int{0}, []uint32{10, 11}},
		{model.FanOut{CPUs: 2}, 4, []int{0, 1}, []uint32{13, 14}},
		{model.FanOut{CPUs: 2}, 4, []int{-1}, []uint32{13, 14}},
		{model.FanOut{CPUs: 7}, 4, []int{1}, []uint32{3, 8, 9, 10, 11, 13, 14}}, // 4, 5, 6 and 12 have the queues
		{model.FanOut{CPUs: 12}, 4, []int{1}, []uint32{0, 1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14}},
		{model.FanOut{Auto: true}, 12, []int{0}, []uint32{13, 14}},
		{model.FanOut{Auto: true}, 6, []int{1}, []uint32{0, 1, 2, 3, 8, 9, 10, 11}},
		{model.FanOut{Auto: true}, 14, []int{0}, nil},
		{model.FanOut{Auto: true}, 16, []int{0}, nil},
	} {
		nodes := map[int]bool{}
		for _, n := range c.nodes {
			nodes[n] = true
		}
		if got, err := m.host().cpus().usable().others(c.f, c.queues, nodes); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("fan-out %s with %d queues on nodes %v gives packets to %v (%v), want %v", c.f, c.queues, c.nodes, got, err, c.want)
		}
	}
	if cpus, err := m.host().cpus().usable().others(model.FanOut{CPUs: 14}, 1, nil); err == nil || err.Error() != "director.fan-out is 14, and this host has 14 CPUs for packets, of which one at least serves the receive queues" {
		t.Errorf("as many as there are: %v, %v", cpus, err)
	}
}

// A driver that sends only from CPUs below the number of its queues keeps as many as the CPUs need that packets
// come to: those that get packets of others, and those of the other arm.
func TestQueuesToSendBy(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 16).driver = "i40e"
	m.addCard("eth1", 0, 16)
	if found := m.survey(Options{FanOut: []uint32{14, 15}}, "eth0"); found["queues eth0"].Amiss {
		t.Errorf("with fan-out to CPUs 14 and 15 it says %s", found["queues eth0"].Text)
	}
	m.write("sys/devices/system/cpu/isolated", "0-11")
	if found := m.survey(Options{}, "eth0", "eth1"); found["queues eth0"].Amiss || found["interrupts eth1"].Fix != "" {
		t.Errorf("with CPUs 12 to 15 for packets it says %s; %s", found["queues eth0"].Text, found["interrupts eth1"].Text)
	}
	if found := m.survey(Options{}, "eth0"); !found["queues eth0"].Amiss {
		t.Errorf("of one arm with 4 CPUs it says %s", found["queues eth0"].Text)
	}
}

// Threads may run on any CPU: where one from which another interface sends nothing is among them, they lose packets.
func TestThreadsThatLosePackets(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.addCard("eth0", 1, 16)
	m.addCard("eth1", 0, 4).most.Combined = 4
	m.cards["eth1"].driver = "mlx5_core"
	found := m.survey(Options{Threaded: true}, "eth0", "eth1")
	says(t, found, "threaded eth0", true, "softirqs serve the queues, and no threads; eth1 (mlx5_core) sends only what comes to CPUs below 4, the number of its queues, and threads may run on others")
	if len(AmissIn([]Part{found["threaded eth0"]})) > 0 {
		t.Error("it wants threads")
	}
	if found := m.survey(Options{}, "eth0", "eth1"); found["threaded eth0"].Amiss {
		t.Errorf("without threads it says %s", found["threaded eth0"].Text)
	}
	m.write("sys/class/net/eth0/threaded", "1")
	m.write("proc/300/comm", "napi/eth0-8193")
	m.write("proc/300/status", "Cpus_allowed_list:\t0-15")
	says(t, m.survey(Options{}, "eth0", "eth1"), "threaded eth0", true, "1 thread serves the queues (threaded NAPI), and 1 of them may run on any CPU, wherever the queue's interrupt comes; eth1 (mlx5_core) sends only what comes to CPUs below 4, the number of its queues, and threads may run on others")
}
