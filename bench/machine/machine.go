// Package machine describes where the benchmarks run, as far as it explains their
// figures.
package machine

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"weir.io/weir/lab/record"
)

// Describe returns what this machine is. Unknown fields stay empty.
func Describe(ctx context.Context) record.Machine {
	m := record.Machine{
		Cores:  runtime.NumCPU(),
		Kernel: read("/proc/sys/kernel/osrelease"), Arch: runtime.GOARCH, Go: runtime.Version(),
		JIT:         jit(read("/proc/sys/net/core/bpf_jit_enable")),
		Mitigations: mitigations("/sys/devices/system/cpu/vulnerabilities"),
		Tools:       tools(ctx),
		Latencies:   latencies(),
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
		m.CPU = cpus[0].ModelName
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		m.MemoryBytes = *memory.MemTotalBytes
	}
	return m
}

// Commit returns what git calls the tree in the working directory, "unknown" outside
// of one.
func Commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func read(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// jit is whether the kernel compiles BPF: 1, or 2 with debugging.
func jit(setting string) bool { return setting == "1" || setting == "2" }

// mitigations returns what the kernel does against the CPU's flaws, without those
// that the CPU does not have: retpolines and their like are on a packet's path.
func mitigations(directory string) map[string]string {
	files, _ := filepath.Glob(filepath.Join(directory, "*")) // its only error is about the pattern
	found := map[string]string{}
	for _, file := range files {
		if text := read(file); text != "" && text != "Not affected" {
			found[filepath.Base(file)] = text
		}
	}
	return found
}

// The programs that weir is compared with and measured by, and how to ask for their versions.
var versions = map[string][]string{
	"iptables": {"--version"}, "nft": {"--version"}, "nginx": {"-v"},
	"haproxy": {"-v"}, "wrk": {"-v"}, "iperf3": {"--version"},
}

// tools returns the versions of the installed ones.
func tools(ctx context.Context) map[string]string {
	found := map[string]string{}
	for name, args := range versions {
		path, err := exec.LookPath(name)
		if err != nil {
			path = filepath.Join("/usr/sbin", name) // where Debian has some, outside a user's path
		}
		// wrk prints its version and exits with 1: what it printed counts.
		out, _ := exec.CommandContext(ctx, path, args...).CombinedOutput()
		if version := version(out); version != "" {
			found[name] = version
		}
	}
	return found
}

// version returns the first word with a digit in a program's output.
func version(out []byte) string {
	first, _, _ := bytes.Cut(out, []byte("\n"))
	for _, word := range strings.Fields(string(first)) {
		_, rest, slash := strings.Cut(word, "/") // nginx/1.22.1
		if !slash {
			rest = word
		}
		if rest = strings.TrimPrefix(rest, "v"); rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return rest
		}
	}
	return ""
}

// line is how many bytes a cache fetches at once.
const line = 64

// The sizes of what is read: from what a core's second cache holds to what no cache does. If
// reading takes long although the last cache should hold the data, other machines of the host use
// that cache, and whatever depends on it is slow: for example, a forwarder with many rings.
var workingSets = []int{256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20}

// latencies returns how long a read takes that waits for the previous one.
func latencies() []record.Latency {
	var all []record.Latency
	for _, size := range workingSets {
		all = append(all, record.Latency{Bytes: uint64(size), Nanoseconds: Latency(size)})
	}
	return all
}

// Latency is how long a read takes that waits for the previous one, in memory of that many bytes: the
// median of some runs through lines in random order.
func Latency(size int) float64 {
	const steps, runs = 50_000, 9
	memory := chain(size / line)
	var took []float64
	at := uint64(0)
	for range runs {
		start := time.Now()
		for range steps {
			at = memory[at*line/8]
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/steps)
	}
	if at == math.MaxUint64 { // this keeps the compiler from removing the loop
		return 0
	}
	return record.Median(took)
}

// chain makes every line name the next one, in one circle through all.
func chain(lines int) []uint64 {
	memory := make([]uint64, lines*line/8)
	order := rand.New(rand.NewPCG(1, uint64(lines))).Perm(lines)
	for i, from := range order {
		memory[from*line/8] = uint64(order[(i+1)%lines])
	}
	return memory
}
