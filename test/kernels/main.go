// Command kernels runs weir's kernel tests on kernels other than this host's: it
// boots Debian's under qemu, without KVM, with the compiled tests in an initramfs.
//
// The guest is an amd64 machine with two CPUs and no disk and no network card. Its
// init (test/kernels/guest) loads the modules, runs each test binary and says how it
// ended; whatever else happens (a panic, silence, a kernel warning) is a failure.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// modules that the tests need; those that they depend on come by themselves.
var modules = []string{
	"veth", "bridge", "8021q", "sch_ingress", "cls_bpf",
	"ipip", "sit", "ip6_tunnel", "fou", "fou6",
	"tcp_diag",
}

func main() {
	versions := flag.String("kernels", "6.1,6.12", "kernel `versions`, of those that Debian offers")
	packages := flag.String("packages", "./internal/datapath,./internal/agent,./internal/utilization,./test/decap", "`packages` whose tests the guest runs")
	run := flag.String("run", "", "run only the tests that match this `regexp`")
	dir := flag.String("dir", "build/kernels", "`directory` for kernels, initramfs and logs")
	timeout := flag.Duration("timeout", 15*time.Minute, "longest time that one kernel may take")
	flag.Parse()

	total, err := runAll(*dir, strings.Split(*versions, ","), strings.Split(*packages, ","), *run, *timeout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		total.failed = max(total.failed, 1)
	}
	fmt.Println(total)
	if total.failed > 0 {
		os.Exit(1)
	}
}

// runAll tests all kernels at once: each keeps little more than one CPU busy.
func runAll(dir string, versions, packages []string, run string, timeout time.Duration) (tally, error) {
	tests, err := compile(filepath.Join(dir, "payload"), packages, run, timeout)
	if err != nil {
		return tally{}, err
	}
	kernels := make([]kernel, len(versions))
	for i, version := range versions {
		if kernels[i], err = fetch(dir, version); err != nil {
			return tally{}, fmt.Errorf("kernel %s: %w", version, err)
		}
	}
	tallies, errs := make([]tally, len(versions)), make([]error, len(versions))
	var guests sync.WaitGroup
	for i, version := range versions {
		guests.Go(func() {
			if tallies[i], errs[i] = test(dir, version, kernels[i], tests, timeout); errs[i] != nil {
				errs[i] = fmt.Errorf("kernel %s: %w", version, errs[i])
			}
		})
	}
	guests.Wait()
	var total tally
	for _, t := range tallies {
		total.add(t)
	}
	return total, errors.Join(errs...)
}

// test boots one kernel with the tests and counts what they say.
func test(dir, version string, k kernel, tests []binary, timeout time.Duration) (tally, error) {
	initramfs := filepath.Join(dir, version+".cpio")
	if err := pack(initramfs, k, tests); err != nil {
		return tally{}, fmt.Errorf("pack the initramfs: %w", err)
	}
	output, err := os.Create(filepath.Join(dir, version+".out"))
	if err != nil {
		return tally{}, err
	}
	defer output.Close()
	start := time.Now()
	r := newReport(os.Stdout, k.release)
	bootErr := boot(k, initramfs, filepath.Join(dir, version+".log"), timeout, func(line string) {
		fmt.Fprintln(output, line)
		r.line(line)
	})
	if bootErr == nil && !r.done {
		bootErr = errors.New(tail(filepath.Join(dir, version+".log")))
	}
	err = errors.Join(bootErr, r.verdict(tests))
	fmt.Printf("%s: %v (%.0f s)\n", k.release, r.total(), time.Since(start).Seconds())
	return r.total(), err
}
