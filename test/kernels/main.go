// Command kernels runs weir's kernel tests on kernels other than this host's: it boots Debian's
// kernels under qemu, without KVM, with the compiled tests in an initramfs.
//
// The guest is an amd64 machine with two CPUs and no disk and no network card. Its init
// (test/kernels/guest) loads the modules, runs each test binary and says how it ended; anything
// else (a panic, silence, a kernel warning) is a failure. The kernels gem and pc stand for machines
// with network cards, whose wires this program serves (wire.go).
//
// With -host the guest sees this host's files, so that tests of ./test find the programs that they
// run; writes are lost with the guest. The guest has devices that a host's own kernel may lack:
// bonds, VLANs, VRFs and tunnels.
//
// With -command the guest runs a shell command instead, in the directory where this program is
// started. With -systemd systemd is the guest's init, and what runs is a service; -kernels own does
// that on this host's kernel, in namespaces, in a fraction of the time.
//
// With -nics the guest has network cards and two NUMA nodes: what can be set only in a NIC is tested there.
// That takes root.
//
// With -instructions every instruction takes 1 ns of the guest's time: nanoseconds that a command
// measures are then instructions, and the same each time.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// modules are the modules that the tests need; their dependencies are added.
var modules = []string{
	"veth", "bridge", "8021q", "sch_ingress", "cls_bpf",
	"ipip", "sit", "ip6_tunnel", "fou", "fou6",
	"tcp_diag",
}

// hostModules are additional modules for guests that see the host's files: 9p, and devices.
var hostModules = []string{
	"crc32c_generic", // libcrc32c finds no algorithm without it
	"9p", "9pnet_virtio", "overlay",
	"bonding", "vrf", "macvlan", "dummy", "geneve", "vxlan", "wireguard", "ip_gre", "sctp", "ip_vs",
	"inet_diag", "udp_diag", "nf_tables", "nft_ct", "nft_compat", "nft_reject_inet", "nft_chain_nat", "ip_tables",
	"xt_tcpudp", "xt_conntrack", "act_bpf", "tls", "algif_hash",
}

// nicModules are the drivers of the cards that -nics gives.
var nicModules = []string{"virtio_net", "virtio_pci", "vmxnet3", "e1000e"}

// guests are the kernels to boot, and what runs in them.
type guests struct {
	dir      string
	versions []string
	packages []string
	run      patterns
	timeout  time.Duration
	whole    bool   // random tests are as long as on this host
	host     bool   // guests see this host's files
	command  string // runs instead of tests
	systemd  bool   // is the guests' init
	counts   bool   // time is a count of instructions
	nics     bool   // guests have network cards
}

func main() {
	versions := flag.String("kernels", "6.1,6.12", "kernel `versions`, of those that Debian offers, or gem and pc, for machines with network cards; with -systemd also own, for this host's in namespaces")
	packages := flag.String("packages", "./internal/datapath,./internal/agent,./internal/utilization,./test/decap", "`packages` whose tests the guest runs")
	run := patterns{}
	flag.Func("run", "run only the tests that match this `regexp`; VERSION=REGEXP is for one kernel, and may be given for each", run.set)
	dir := flag.String("dir", "build/kernels", "`directory` for kernels, initramfs and logs")
	timeout := flag.Duration("timeout", 15*time.Minute, "longest time that one kernel may take")
	whole := flag.Bool("whole", false, "run random tests at full length: several times as long")
	host := flag.Bool("host", false, "let the guest see this host's files, without changing them")
	command := flag.String("command", "", "run this shell `command` instead of tests; needs -host")
	systemd := flag.Bool("systemd", false, "have systemd as the guest's init; needs -host")
	counts := flag.Bool("instructions", false, "let each instruction take 1 ns of the guest's time")
	nics := flag.Bool("nics", false, "give the guest network cards")
	flag.Parse()
	if *command != "" && !*host {
		fmt.Fprintln(os.Stderr, "-command needs -host: a guest by itself has no shell")
		os.Exit(2)
	}
	if *systemd && !*host {
		fmt.Fprintln(os.Stderr, "-systemd needs -host: a guest by itself has no systemd")
		os.Exit(2)
	}

	for version := range run {
		if version != "" && !slices.Contains(strings.Split(*versions, ","), version) {
			fmt.Fprintf(os.Stderr, "-run %s=: kernel %s is not in -kernels %s\n", version, version, *versions)
			os.Exit(2)
		}
	}
	if slices.Contains(strings.Split(*versions, ","), own) && (!*systemd || strings.Contains(*packages, ",")) {
		fmt.Fprintln(os.Stderr, "-kernels own needs -systemd, and one package")
		os.Exit(2)
	}

	total, err := guests{*dir, strings.Split(*versions, ","), strings.Split(*packages, ","), run, *timeout, *whole, *host, *command, *systemd, *counts, *nics}.runAll()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		total.failed = max(total.failed, 1)
	}
	if *command == "" {
		fmt.Println(total)
	}
	if total.failed > 0 {
		os.Exit(1)
	}
}

// patterns say which tests run: by kernel version, or "" for those without one of their own.
type patterns map[string]string

var ofVersion = regexp.MustCompile(`^(own|gem|pc|\d+(\.\d+)+)=(.*)$`)

func (p patterns) set(text string) error {
	version, pattern := "", text
	if parts := ofVersion.FindStringSubmatch(text); parts != nil {
		version, pattern = parts[1], parts[3]
	}
	if _, twice := p[version]; twice {
		return fmt.Errorf("there is a regexp for %s already", cmp.Or(version, "all kernels"))
	}
	p[version] = pattern
	_, err := regexp.Compile(pattern)
	return err
}

// on returns the tests with what runs on a kernel.
func (p patterns) on(version string, tests []binary) (list []binary) {
	pattern, own := p[version]
	if !own {
		pattern = p[""]
	}
	for _, t := range tests {
		if !t.command {
			t.args = append(slices.Clone(t.args), "-test.run="+pattern)
		}
		list = append(list, t)
	}
	return list
}

// runAll tests all kernels at once: each keeps little more than one CPU busy.
func (g guests) runAll() (tally, error) {
	tests := map[string][]binary{}
	for _, architecture := range g.architectures() {
		compiled, err := g.compile(architecture)
		if err != nil {
			return tally{}, err
		}
		tests[architecture] = compiled
	}
	kernels := make([]kernel, len(g.versions))
	for i, version := range g.versions {
		var err error
		if kernels[i], err = g.fetch(version); err != nil {
			return tally{}, fmt.Errorf("kernel %s: %w", version, err)
		}
	}
	tallies, errs := make([]tally, len(g.versions)), make([]error, len(g.versions))
	var running sync.WaitGroup
	for i, version := range g.versions {
		running.Go(func() {
			if tallies[i], errs[i] = g.test(version, kernels[i], g.run.on(version, tests[g.machine(version).architecture])); errs[i] != nil {
				errs[i] = fmt.Errorf("kernel %s: %w", version, errs[i])
			}
		})
	}
	running.Wait()
	var total tally
	for _, t := range tallies {
		total.add(t)
	}
	return total, errors.Join(errs...)
}

// fetch finds a kernel, and what it is booted with, or downloads both.
func (g guests) fetch(version string) (kernel, error) {
	m := g.machine(version)
	if version == own {
		return kernel{release: own}, nil
	}
	if len(m.nics) == 0 {
		return debian{}.fetch(g.dir, version, m.flavor)
	}
	k, has, err := unpacked(g.dir, nicKernel, m.flavor)
	if err != nil {
		return kernel{}, err
	}
	qemu, hasQEMU, err := unpackedQEMU(g.dir)
	if err != nil {
		return kernel{}, err
	}
	if !has || !hasQEMU {
		d, err := trixie(g.dir)
		if err != nil {
			return kernel{}, err
		}
		if qemu, err = d.fetchQEMU(g.dir); err != nil {
			return kernel{}, fmt.Errorf("fetch qemu: %w", err)
		}
		if k, err = d.fetch(g.dir, nicKernel, m.flavor); err != nil {
			return kernel{}, err
		}
	}
	k.emulator = qemu
	return k, nil
}

// test boots one kernel with the tests and counts their results.
func (g guests) test(version string, k kernel, tests []binary) (tally, error) {
	initramfs := filepath.Join(g.dir, version+".cpio")
	if version != own {
		if err := g.pack(initramfs, version, k, tests); err != nil {
			return tally{}, fmt.Errorf("pack the initramfs: %w", err)
		}
	}
	output, err := os.Create(filepath.Join(g.dir, version+".out"))
	if err != nil {
		return tally{}, err
	}
	defer output.Close()
	start := time.Now()
	name := k.release
	if _, is := nicMachines[version]; is {
		name = version + ": " + name
	}
	r := newReport(os.Stdout, name)
	log := filepath.Join(g.dir, version+".log")
	see := func(line string) {
		fmt.Fprintln(output, line)
		if g.command != "" && !strings.HasPrefix(line, "guest: ") {
			fmt.Println(line)
			return
		}
		r.line(line)
	}
	var bootErr error
	if version == own {
		bootErr = g.contain(tests[0], see)
	} else {
		bootErr = g.boot(version, k, initramfs, log, see)
	}
	if bootErr == nil && !r.done {
		bootErr = errors.New(tail(log))
	}
	err = errors.Join(bootErr, r.verdict(tests))
	if g.command == "" {
		fmt.Printf("%s: %v (%.0f s)\n", name, r.total(), time.Since(start).Seconds())
	}
	return r.total(), err
}
