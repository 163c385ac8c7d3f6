package main

import (
	"fmt"
	"maps"
	"slices"
)

// machine is what a guest is, besides its kernel's version.
type machine struct {
	architecture string // Go's and Debian's name for it
	flavor       string // of its kernel
	program      string // of qemu
	args         []string
	kernelArgs   string
	console      string // its first serial port
	port         string // its second one
	modules      []string
	// registers are words of its memory that init writes before it loads modules: address and value.
	registers string
	// nics are the devices of its network cards; each has a wire of its own. A board has its cards already.
	nics  []string
	board bool
}

// usualMachine has no network card. Its kernel is one of those that this host's apt offers, and so is qemu.
func (g guests) usualMachine() machine {
	m := machine{
		architecture: "amd64", flavor: cloud, program: "qemu-system-x86_64",
		// Without fast string operations (ERMS, FSRM) Linux copies and clears in words: qemu emulates
		// "rep movsb" byte by byte, which took half of the time.
		args:       []string{"-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", "2048"},
		kernelArgs: "no_timer_check", console: "ttyS0", port: "/dev/ttyS1", modules: modules,
	}
	if g.host {
		m.flavor, m.modules = usual, slices.Concat(modules, hostModules)
		m.args = append(m.args, "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap")
	}
	if g.nics {
		m.flavor, m.modules = usual, slices.Concat(m.modules, nicModules)
		m.args = append(m.args, tunedCards...)
	}
	if g.counts {
		// One CPU: with more, the time includes the CPUs' turns.
		m.args = append(m.args, "-icount", "shift=0,sleep=off", "-smp", "1")
	}
	return m
}

// tunedCards are a card with as many queues as CPUs, whose RSS can be set (virtio), one whose queues have one
// interrupt each (VMware's), and one with a single queue (Intel's). Tests know them by their addresses.
var tunedCards = []string{
	"-smp", "4,sockets=2,cores=2", "-object", "memory-backend-ram,size=1G,id=m0", "-object", "memory-backend-ram,size=1G,id=m1",
	"-numa", "node,nodeid=0,cpus=0-1,memdev=m0", "-numa", "node,nodeid=1,cpus=2-3,memdev=m1",
	"-netdev", "tap,id=n0,queues=4,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n0,mac=02:77:65:69:72:00,mq=on,vectors=10,rss=on,hash=on,rx_queue_size=1024,tx_queue_size=256",
	"-netdev", "hubport,hubid=0,id=n1", "-device", "vmxnet3,netdev=n1,mac=02:77:65:69:72:01",
	"-netdev", "hubport,hubid=0,id=n2", "-device", "e1000e,netdev=n2,mac=02:77:65:69:72:02",
}

// nicMachines are machines with network cards, by the names that stand for kernel versions. They are
// emulated by Debian 13's qemu, and have its kernel: the one of Debian 12 has no igb, and its GEM does not
// do what rules say.
var nicMachines = map[string]machine{
	// Cadence's GEM leads packets to its second receive queue by rules. qemu's GEM has what rules are
	// made of (type 2 screeners: 4, with 12 comparisons and 8 EtherTypes), but does not say so in its
	// register DCFG8, by which the driver decides.
	"gem": {
		architecture: "arm64", flavor: arm, program: "qemu-system-aarch64",
		args:    []string{"-machine", "xlnx-versal-virt", "-m", "1G"},
		console: "ttyAMA0", port: "/dev/ttyAMA1", modules: []string{"marvell", "macb"},
		registers: "0xff0c029c=0x0404080c",
		nics:      []string{"cadence_gem"}, board: true,
	},
	// A PC with cards whose drivers have no rules.
	"pc": {
		architecture: "amd64", flavor: usual, program: "qemu-system-x86_64",
		args:       []string{"-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "max,-erms,-fsrm", "-smp", "2", "-m", "1G"},
		kernelArgs: "no_timer_check", console: "ttyS0", port: "/dev/ttyS1", modules: []string{"igb", "e1000e", "vmxnet3", "virtio_pci", "virtio_net"},
		nics: []string{"igb", "e1000e", "vmxnet3", "virtio-net-pci"},
	},
}

// nicKernel is the version of these machines' kernel.
const nicKernel = "6.12"

func (g guests) machine(version string) machine {
	if m, has := nicMachines[version]; has {
		return m
	}
	return g.usualMachine()
}

// architectures are those for which tests have to be compiled.
func (g guests) architectures() []string {
	names := map[string]bool{}
	for _, version := range g.versions {
		names[g.machine(version).architecture] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// macOf is the address of a machine's card.
func macOf(card int) string { return fmt.Sprintf("52:54:00:00:00:%02x", card+1) }

// cards are qemu's arguments for them. Their wires are the files that qemu gets, from 3 on.
func (m machine) cards() []string {
	args := []string{"-nic", "none"}
	if len(m.nics) > 0 {
		args = nil
	}
	for i, name := range m.nics {
		args = append(args, "-netdev", fmt.Sprintf("dgram,id=wire%d,local.type=fd,local.str=%d", i, 3+i))
		if m.board {
			args = append(args, "-net", fmt.Sprintf("nic,model=%s,netdev=wire%d,macaddr=%s", name, i, macOf(i)))
		} else {
			args = append(args, "-device", fmt.Sprintf("%s,netdev=wire%d,mac=%s,romfile=", name, i, macOf(i)))
		}
	}
	return args
}
