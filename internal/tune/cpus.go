package tune

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cpu is one that the kernel schedules.
type cpu struct {
	number int
	core   int // the first CPU of its core: SMT siblings share one
	node   int // of memory
	// isolated says that its owner keeps it for something else (isolcpus=), or serves its queues there by
	// hand.
	isolated bool
}

// topology is all that are online.
type topology []cpu

// cpus reads sysfs. Where it does not say what CPUs share, each is a core of its own, and all are of one node.
func (h *Host) cpus() topology {
	at := filepath.Join(h.Sys, "devices/system")
	isolated := parseList(readText(filepath.Join(at, "cpu/isolated")))
	nodes := map[int]int{}
	dirs, _ := filepath.Glob(filepath.Join(at, "node/node[0-9]*")) // the pattern is not bad
	for _, dir := range dirs {
		node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		for _, number := range parseList(readText(filepath.Join(dir, "cpulist"))) {
			nodes[number] = node
		}
	}
	var t topology
	for _, number := range parseList(readText(filepath.Join(at, "cpu/online"))) {
		c := cpu{number: number, core: number, node: nodes[number], isolated: slices.Contains(isolated, number)}
		if siblings := parseList(readText(filepath.Join(at, fmt.Sprintf("cpu/cpu%d/topology/thread_siblings_list", number)))); len(siblings) > 0 {
			c.core = slices.Min(siblings)
		}
		t = append(t, c)
	}
	return t
}

// usable are those that may serve queues without being asked: all, or those that are not isolated.
func (t topology) usable() topology {
	u := slices.DeleteFunc(slices.Clone(t), func(c cpu) bool { return c.isolated })
	if len(u) == 0 {
		return t
	}
	return u
}

func (t topology) find(number int) (cpu, bool) {
	at := slices.IndexFunc(t, func(c cpu) bool { return c.number == number })
	if at < 0 {
		return cpu{}, false
	}
	return t[at], true
}

// anywhere is where a thread that is not bound serves a queue: each number is one of a queue.
func (t topology) anywhere() map[int]int {
	on := map[int]int{}
	for _, c := range t {
		on[c.number] = c.number
	}
	return on
}

func (t topology) numbers() (all []uint32) {
	for _, c := range t {
		all = append(all, uint32(c.number))
	}
	return all
}

func (t topology) nodes() []int { return distinct(t, func(c cpu) int { return c.node }) }
func (t topology) cores() []int { return distinct(t, func(c cpu) int { return c.core }) }

func distinct(t topology, of func(cpu) int) []int {
	var all []int
	for _, c := range t {
		all = append(all, of(c))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// nodeOf returns the NUMA node of an interface's device, or of what that is on, as virtio's; -1: none.
func (h *Host) nodeOf(dir string) int {
	for _, dir := range h.ancestors(dir) {
		if node, err := strconv.Atoi(readText(filepath.Join(dir, "numa_node"))); err == nil && node >= 0 {
			return node
		}
	}
	return -1
}

// ancestors are the directories of an interface's device and of those that it is on.
func (h *Host) ancestors(dir string) (all []string) {
	device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	top, topErr := filepath.EvalSymlinks(filepath.Join(h.Sys, "devices"))
	if errors.Join(err, topErr) != nil {
		return nil // it has no device
	}
	for ; strings.HasPrefix(device, top+"/"); device = filepath.Dir(device) {
		all = append(all, device)
	}
	return all
}

// parseList reads a list of CPUs as the kernel writes it: 0-3,8. What is no list has no CPUs.
func parseList(text string) (numbers []int) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b := a
		if isRange && err == nil {
			b, err = strconv.Atoi(last)
		}
		if err != nil || b < a || b-a > 1<<16 {
			return nil
		}
		for n := a; n <= b; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// list writes numbers as the kernel writes lists of CPUs.
func list(numbers []int) string {
	numbers = slices.Clone(numbers)
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, strconv.Itoa(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
