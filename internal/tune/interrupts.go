package tune

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// interrupt is one of a NIC's queue.
type interrupt struct {
	number   int
	action   string // the driver's name of it
	queue    int
	receives bool // packets come by it; otherwise it only says that some have been sent
	used     bool // virtio has those of all queues that there may be
	allowed  string
	on       int // the CPU that it comes to
}

// noQueue are interrupts that are for something else, by the words that drivers give them.
var noQueue = regexp.MustCompile(`(?i)async|adminq|ceq|config|control|ctrl|event|fdir|hwc|mbx|mgmn?t|misc|ptp|wake`)

// queueActions find a queue's number in the name of its interrupt: input.0 (virtio), TxRx-0 (ice, i40e, ixgbe),
// Tx-Rx-0 (ena), rxtx-0 (vmxnet3), comp0 (mlx5), rx-0 (igb).
var queueActions = []struct {
	pattern  *regexp.Regexp
	receives bool
}{
	{regexp.MustCompile(`(?i)(?:tx-?rx|rx-?tx|comp)-?(\d+)$`), true},
	{regexp.MustCompile(`(?i)(?:input\.|\brx-?)(\d+)$`), true},
	{regexp.MustCompile(`(?i)(?:output\.|\btx-?)(\d+)$`), false},
}

// anyNumber is of drivers that only number what they have: some count those for sending behind those for
// receiving.
var anyNumber = regexp.MustCompile(`(\d+)\)?$`)

// queueOf says which of an interface's queues an interrupt is of. The interface's own name may end in a number.
func queueOf(action, name string, queues int) (queue int, receives, is bool) {
	action, _, _ = strings.Cut(action, "@") // mlx5_comp0@pci:0000:3b:00.0
	if noQueue.MatchString(action) {
		return 0, false, false
	}
	action = strings.Replace(action, name, "", 1)
	for _, a := range queueActions {
		if match := a.pattern.FindStringSubmatch(action); match != nil {
			queue, err := strconv.Atoi(match[1])
			return queue, a.receives, err == nil
		}
	}
	if match := anyNumber.FindStringSubmatch(action); match != nil && queues > 0 {
		queue, err := strconv.Atoi(match[1])
		return queue % queues, true, err == nil
	}
	return 0, false, false
}

// interruptsOf returns those of a NIC's queues. They belong to its device, or to one that it is on: those of
// virtio to the PCI device.
func (h *Host) interruptsOf(n *nic) (of []interrupt) {
	for _, dir := range h.ancestors(n.dir) {
		entries, err := os.ReadDir(filepath.Join(dir, "msi_irqs"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if number, err := strconv.Atoi(e.Name()); err == nil {
				of = append(of, h.interrupt(number))
			}
		}
		break
	}
	// A device with several ports has the interrupts of all of them.
	if named := slices.DeleteFunc(slices.Clone(of), func(i interrupt) bool { return !strings.Contains(i.action, n.name) }); len(named) > 0 {
		of = named
	}
	queues := int(max(n.queues, 1))
	of = slices.DeleteFunc(of, func(i interrupt) bool { _, _, is := queueOf(i.action, n.name, queues); return !is || i.on < 0 })
	for i := range of {
		of[i].queue, of[i].receives, _ = queueOf(of[i].action, n.name, queues)
		of[i].used = of[i].queue < queues
	}
	slices.SortFunc(of, func(a, b interrupt) int {
		return cmp.Or(cmp.Compare(a.queue, b.queue), cmp.Compare(a.number, b.number))
	})
	return of
}

// interrupt reads one from /proc/irq: the names of its directories are those of what handles it.
func (h *Host) interrupt(number int) interrupt {
	dir := filepath.Join(h.Proc, "irq", strconv.Itoa(number))
	i := interrupt{number: number, allowed: readText(filepath.Join(dir, "smp_affinity_list")), on: -1}
	entries, _ := os.ReadDir(dir) // it may have gone
	for _, e := range entries {
		if e.IsDir() {
			i.action = e.Name()
		}
	}
	may, does := parseList(i.allowed), parseList(readText(filepath.Join(dir, "effective_affinity_list")))
	switch {
	case len(may) == 1 || len(may) > 0 && len(does) == 0: // one that has just been set takes effect with the next interrupt
		i.on = may[0]
	case len(does) > 0:
		i.on = does[0]
	}
	return i
}

// spread is where queues are served: the CPU of each, by interface and queue.
type spread []map[int]int

// interrupts looks at which CPUs serve the queues of all interfaces, which share the CPUs.
func (s *survey) interrupts() {
	now := make(spread, len(s.nics))
	for i, n := range s.nics {
		n.served = s.host.interruptsOf(n)
		now[i] = map[int]int{}
		for _, irq := range n.served {
			if irq.receives && irq.used {
				now[i][irq.queue] = irq.on
			}
		}
	}
	best := s.place(now)
	fine := !s.cost(best).less(s.cost(now))
	for i, n := range s.nics {
		if len(now[i]) > 0 {
			p := s.served(n, now[i], best[i], fine || maps.Equal(now[i], best[i]))
			if losing := s.losing(n, now[i]); losing != nil {
				p.Amiss = true
				p.Text += "; " + losing.sendsOnly() + ", and loses the rest"
				p.Fix = "bring the interrupts to CPUs below that, or give " + losing.name + " as many queues as there are CPUs"
			}
			s.add(p)
		}
	}
}

// sendsOnly says from which CPUs an interface sends.
func (n *nic) sendsOnly() string {
	return fmt.Sprintf("%s (%s) sends only what comes to CPUs below %d, the number of its queues", n.name, n.driver, n.queues)
}

// losing returns an interface that loses packets that queues of another one bring it, by the CPUs of these.
func (s *survey) losing(from *nic, on map[int]int) *nic {
	for _, n := range s.nics {
		if n == from || !n.sendsOfQueues() {
			continue
		}
		for _, number := range on {
			if number >= int(n.queues) {
				return n
			}
		}
	}
	return nil
}

// reaches says whether what comes to a CPU for an interface can leave by all others.
func (s *survey) reaches(from *nic, c cpu) bool {
	return !slices.ContainsFunc(s.nics, func(n *nic) bool { return n != from && n.sendsOfQueues() && c.number >= int(min(n.queues, n.wanted)) })
}

// served is the part of one interface.
func (s *survey) served(n *nic, now, best map[int]int, fine bool) Part {
	p := Part{Kind: Interrupts, Interface: n.name}
	for _, irq := range n.served {
		setting := Setting{Kind: Interrupts, Interface: n.name, Of: strconv.Itoa(irq.number), Identity: irq.action, Now: irq.allowed, Want: irq.allowed}
		setting.read, setting.write, setting.command = file(filepath.Join(s.host.Proc, "irq", setting.Of, "smp_affinity_list"))
		if to, is := best[irq.queue]; is && irq.used && !fine && irq.on != to {
			setting.Want = strconv.Itoa(to)
			p.Amiss = true
		}
		p.Settings = append(p.Settings, setting)
	}
	on, cores, off := s.servedBy(n, now)
	p.Text = fmt.Sprintf("%s %s served by %s (%s of %d)", count(len(now), "receive queue"), isOrAre(len(now)), cpusText(on), count(cores, "core"), len(s.cpus.cores()))
	if n.node >= 0 && len(s.cpus.nodes()) > 1 {
		p.Text += fmt.Sprintf(", %d of them by those of another NUMA node than the NIC's, %d", off, n.node)
	}
	if p.Amiss {
		to, _, _ := s.servedBy(n, best)
		p.Text += fmt.Sprintf("; better by %s", cpusText(to))
	}
	return p
}

func cpusText(cpus []int) string {
	text := list(cpus)
	if strings.ContainsAny(text, ",-") {
		return "CPUs " + text
	}
	return "CPU " + text
}

func isOrAre(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// servedBy returns the CPUs that serve queues, their number of cores, and the number of queues off the NIC's
// node.
func (s *survey) servedBy(n *nic, of map[int]int) (on []int, cores, off int) {
	var used topology
	for _, number := range of {
		on = append(on, number)
		c, _ := s.cpus.find(number)
		used = append(used, c)
		if n.node >= 0 && c.node != n.node {
			off++
		}
	}
	return on, len(used.cores()), off
}

// loads count queues by CPU and by core.
type loads struct{ cpu, core map[int]int }

func newLoads() loads { return loads{map[int]int{}, map[int]int{}} }

func (l loads) add(c cpu) {
	l.cpu[c.number]++
	l.core[c.core]++
}

// place gives each queue a CPU: an idle one of an idle core of the NIC's node, else of another node, else a
// sibling. The interfaces choose in turn, and a queue stays where it is if that is as good.
func (s *survey) place(now spread) spread {
	all, own := newLoads(), make([]loads, len(now))
	best, queues, longest := make(spread, len(now)), make([][]int, len(now)), 0
	for i := range now {
		best[i], own[i] = map[int]int{}, newLoads()
		queues[i] = slices.Sorted(maps.Keys(now[i]))
		longest = max(longest, len(queues[i]))
	}
	for turn := range longest {
		for i, n := range s.nics {
			usable := s.cpus.usable()
			if sending := slices.DeleteFunc(slices.Clone(usable), func(c cpu) bool { return !s.reaches(n, c) }); len(sending) > 0 {
				usable = sending
			}
			if turn >= len(queues[i]) || len(usable) == 0 {
				continue
			}
			queue := queues[i][turn]
			moves := func(c cpu) int {
				if c.number == now[i][queue] {
					return 0
				}
				return 1
			}
			c := slices.MinFunc(usable, func(a, b cpu) int {
				return cmp.Or(cmp.Compare(own[i].cpu[a.number], own[i].cpu[b.number]), cmp.Compare(own[i].core[a.core], own[i].core[b.core]),
					cmp.Compare(all.cpu[a.number], all.cpu[b.number]), cmp.Compare(all.core[a.core], all.core[b.core]),
					cmp.Compare(n.away(a), n.away(b)), cmp.Compare(moves(a), moves(b)), cmp.Compare(a.number, b.number))
			})
			all.add(c)
			own[i].add(c)
			best[i][queue] = c.number
		}
	}
	return best
}

// away is 1 for a CPU of another node than the NIC's.
func (n *nic) away(c cpu) int {
	if n.node >= 0 && c.node != n.node {
		return 1
	}
	return 0
}

// cost is what a spread wastes: queues from whose CPU another NIC sends nothing; those that share a CPU with another one of their NIC, or a core; those that
// share one with another NIC's; those that are off their NIC's node. What comes first counts most.
type cost [6]int

func (c cost) less(than cost) bool { return slices.Compare(c[:], than[:]) < 0 }

func (s *survey) cost(of spread) (c cost) {
	all := newLoads()
	for i, n := range s.nics {
		own := newLoads()
		for _, number := range of[i] {
			on, is := s.cpus.find(number)
			if !is {
				on = cpu{number: number, core: number} // it has gone offline meanwhile
			}
			own.add(on)
			all.add(on)
			c[5] += n.away(on)
			if !s.reaches(n, on) {
				c[0]++
			}
		}
		c[1] += shared(own.cpu)
		c[2] += shared(own.core)
	}
	c[3], c[4] = shared(all.cpu), shared(all.core)
	return c
}

// shared counts queues that are not the first of their CPU or core.
func shared(queues map[int]int) (n int) {
	for _, q := range queues {
		n += q - 1
	}
	return n
}
