// Package weir_test holds the rules of the house as tests: who may import whom, what
// is documented, how long a file may be, and that what the documents say is true.
package weir_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/test/laboratories"
)

const module = "weir.io/weir/"

// The libraries, by the names that mayImport uses for them.
var libraries = map[string]string{
	"cobra":      "github.com/spf13/cobra",
	"ebpf":       "github.com/cilium/ebpf",
	"etcd":       "go.etcd.io/etcd",
	"gateway":    "sigs.k8s.io/gateway-api", // the types of Gateway API; not its client
	"go-cmp":     "github.com/google/go-cmp",
	"gobgp":      "github.com/osrg/gobgp/v4/pkg/packet", // reads and writes messages; not the daemon
	"go-yaml":    "github.com/goccy/go-yaml",
	"gopacket":   "github.com/gopacket/gopacket",
	"gonum":      "gonum.org/v1/gonum",
	"grpc":       "google.golang.org/grpc",
	"net":        "golang.org/x/net",
	"huma":       "github.com/danielgtaylor/huma/v2",
	"kubernetes": "k8s.io",                                        // its API's types and its client; see docs/architecture.md
	"libcap":     "kernel.org/pub/linux/libs/security/libcap/cap", // for all threads, without cgo
	"logr":       "github.com/go-logr/logr",
	"ndp":        "github.com/mdlayher/ndp", // router advertisements
	"netlink":    "github.com/vishvananda/netlink",
	"netns":      "github.com/vishvananda/netns",
	"perf":       "golang.org/x/perf",
	"pflag":      "github.com/spf13/pflag",
	"plot":       "gonum.org/v1/plot",
	"prometheus": "github.com/prometheus/client_golang",
	"quic-go":    "github.com/quic-go/quic-go",
	"time":       "golang.org/x/time",
	"sys":        "golang.org/x/sys",
	"zap":        "go.uber.org/zap",
}

// mayImport is the whole of what the packages of weir may import besides the standard
// library: packages by their path in this module, libraries by their short name. It
// is the table of docs/architecture.md: change both, with the reason, or neither.
var mayImport = map[string][]string{
	"internal/model":       {},
	"internal/device":      {"netlink", "sys"},
	"internal/contents":    {"internal/upkeep", "ebpf"},
	"internal/crowd":       {"internal/model"},
	"internal/maglev":      {},
	"internal/turns":       {},
	"internal/upkeep":      {"internal/model", "netlink", "sys"},
	"internal/problems":    {"internal/model"},
	"internal/store":       {"internal/model", "etcd", "grpc", "zap"},
	"internal/config":      {"internal/model", "go-yaml", "sys"}, // sys: inotify
	"internal/engine":      {"internal/model", "internal/maglev", "internal/turns", "internal/history"},
	"internal/history":     {"internal/model"},
	"internal/forecast":    {"internal/model", "internal/engine"},
	"internal/desired":     {"internal/model", "internal/store", "internal/history", "internal/engine"},
	"internal/datapath":    {"internal/model", "internal/contents", "internal/crowd", "internal/device", "internal/nslock", "internal/upkeep", "ebpf", "netlink", "sys"},
	"internal/nslock":      {"internal/upkeep", "sys"},
	"internal/flowsync":    {"internal/model"},
	"internal/loads":       {"internal/model", "sys"},
	"internal/logs":        {"cobra"},
	"internal/bfd":         {"internal/model", "sys"},
	"internal/agent":       {"internal/model", "internal/contents", "internal/crowd", "internal/maglev", "internal/nslock", "internal/upkeep", "ebpf", "netlink", "netns", "sys"},
	"internal/api":         {"internal/model", "huma", "net", "time"}, // net: to limit connections; time: how often one may ask
	"internal/explain":     {"internal/model", "internal/engine", "gopacket"},
	"internal/hooks":       {"internal/model"},
	"internal/bgp":         {"internal/model", "gobgp", "ndp", "net", "sys"}, // ndp, net: how an unnumbered router is found
	"internal/neighbor":    {"internal/model", "netlink", "sys"},
	"internal/health":      {"internal/model", "grpc", "net", "sys"},
	"internal/doctor":      {"internal/model", "internal/device", "internal/privilege", "ebpf", "netlink", "sys"},
	"internal/privilege":   {"internal/model", "libcap", "sys"},
	"internal/metrics":     {"internal/model", "prometheus"},
	"internal/netlab":      {"internal/device", "netlink", "netns", "sys"},
	"internal/etcdlab":     {"etcd", "zap", "netlink"},
	"internal/memlab":      {},
	"internal/routerlab":   {"internal/netlab", "netlink", "sys"},
	"internal/packet":      {"gopacket"},
	"internal/twin":        {"internal/model"},
	"quiclb":               {},
	"web":                  {},
	"internal/utilization": {"ebpf", "sys"},
	"internal/demo": {"internal/model", "internal/config", "internal/api", "internal/netlab", "internal/routerlab",
		"ebpf", "sys"},
	"cmd/weir": {"internal/model", "internal/device", "internal/config", "internal/engine", "internal/datapath",
		"internal/agent", "internal/api", "internal/bfd", "internal/bgp", "internal/doctor", "internal/explain", "internal/forecast", "internal/metrics", "internal/neighbor", "internal/privilege", "internal/problems", "internal/desired", "internal/flowsync", "internal/health", "internal/history", "internal/hooks", "internal/loads", "internal/logs", "internal/store", "internal/upkeep", "internal/utilization", "internal/demo", "web",
		"cobra", "gopacket", "pflag", "sys"},
	"kube/v1alpha1":       {"kubernetes"},
	"kube/pool":           {"internal/model"},
	"kube/translate":      {"internal/model", "kube/pool", "kube/v1alpha1", "kubernetes"},
	"kube/follow":         {"kube/v1alpha1", "kubernetes"},
	"kube/group":          {"internal/model", "internal/history", "internal/engine", "kube/v1alpha1", "kubernetes"}, // kubernetes: to compare versions of objects
	"kube/node":           {"internal/model", "internal/api", "internal/config", "internal/device", "kube/follow", "kube/group", "kube/translate", "kube/v1alpha1", "kubernetes", "netlink", "sys"},
	"kube/controller":     {"internal/model", "internal/api", "kube/follow", "kube/gateway", "kube/group", "kube/pool", "kube/translate", "kube/v1alpha1", "gateway", "kubernetes"},
	"cmd/weir-kube":       {"internal/model", "internal/api", "internal/config", "internal/logs", "kube/controller", "kube/node", "kube/pool", "kube/translate", "cobra", "kubernetes", "logr"}, // logr: what the client logs
	"kube/gateway":        {"internal/model", "kube/pool", "kube/translate", "gateway", "kubernetes"},
	"test/chaos/schedule": {},
	"test/chaos/traffic":  {"internal/netlab", "quiclb", "quic-go", "sys"},
	"test/version":        {},
	"test/chaos/numbers":  {"internal/netlab", "ebpf"},
	"test/chaos": {"test/chaos/schedule", "test/chaos/traffic", "test/chaos/numbers", "test/version", "bench/process", "internal/api", "internal/config", "internal/engine",
		"internal/model", "internal/netlab", "quiclb", "netlink", "sys"},
	"bench": {"bench/record", "bench/bypass", "bench/echo", "bench/queues", "bench/compare", "bench/machine", "bench/policies", "bench/report", "bench/site", "bench/answers", "bench/bulk", "bench/inside", "bench/process", "bench/edge",
		"bench/track", "bench/traffic", "bench/program", "internal/model", "internal/api", "internal/engine", "internal/datapath", "internal/netlab", "internal/utilization", "cobra", "pflag", "ebpf", "sys"},
	"bench/process":      {"internal/model", "internal/config", "internal/api", "internal/netlab", "sys"},
	"bench/answers":      {"bench/process", "internal/api", "internal/engine", "internal/model", "internal/netlab", "internal/packet", "ebpf", "sys"},
	"bench/edge":         {"bench/process", "internal/api", "internal/bfd", "internal/config", "internal/model", "internal/netlab", "internal/routerlab", "netlink", "sys"},
	"bench/bypass":       {"bench/echo", "bench/inside", "bench/process", "internal/model", "internal/api", "internal/netlab", "netlink"},
	"bench/echo":         {"sys"},
	"bench/queues":       {"bench/process", "internal/api", "internal/model", "internal/netlab", "netlink", "sys"},
	"bench/bulk":         {"bench/process", "internal/model", "internal/netlab"},
	"bench/inside":       {"ebpf", "sys"},
	"bench/site":         {"bench/process", "internal/model", "internal/netlab"},
	"bench/traffic":      {"internal/model", "internal/netlab", "ebpf", "sys"},
	"bench/track":        {"bench/process", "bench/traffic", "internal/api", "internal/model", "internal/engine", "internal/netlab", "internal/utilization", "netlink"},
	"bench/program":      {"bench/process", "bench/record", "bench/traffic", "internal/model", "internal/netlab", "ebpf", "sys"},
	"bench/policies":     {"bench/record", "bench/report", "bench/sim", "internal/model", "internal/maglev", "internal/history", "internal/engine"},
	"bench/sim":          {"internal/maglev", "internal/turns"},
	"bench/record":       {},
	"bench/compare":      {"bench/record", "perf"},
	"bench/machine":      {"bench/record"},
	"bench/report":       {"bench/record", "plot"},
	"test/cases":         {},
	"test/frozen":        {"test/laboratories", "ebpf"},
	"test/laboratories":  {},
	"test/kernels":       {},
	"test/kernels/guest": {"netlink", "sys"},

	"test/kube/cluster":   {"bench/process", "internal/netlab", "go-yaml", "kubernetes"},
	"test/kube/site":      {"test/kube/cluster", "bench/process", "internal/api", "internal/model", "internal/netlab", "internal/routerlab", "kube/group", "kube/v1alpha1", "kubernetes"},
	"test/kube/reactions": {"test/kube/cluster", "test/kube/site", "bench/record", "internal/netlab", "kubernetes"},
}

// testsMayImport is what the tests of every package may import besides what the
// package itself may.
var testsMayImport = append([]string{
	"internal/model", "internal/maglev", "internal/turns", "quiclb",
	"ebpf", "etcd", "go-cmp", "gonum", "gopacket", "netlink", "netns", "sys",
}, laboratories.Packages...)

// labUsers are the packages that import laboratories, which must not end up in the program's director
// or agent: only tests import them, and the demo and the benchmarks build labs with one.
var labUsers = map[string][]string{
	"internal/netlab":    {"internal/routerlab", "internal/demo", "bench", "bench/answers", "bench/bulk", "bench/bypass", "bench/edge", "bench/process", "bench/program", "bench/queues", "bench/site", "bench/track", "bench/traffic", "test/chaos", "test/chaos/numbers", "test/chaos/traffic", "test/kube/cluster", "test/kube/reactions", "test/kube/site"},
	"internal/packet":    {"bench/answers"},
	"internal/routerlab": {"bench/edge", "internal/demo", "test/kube/site"},
}

// goPackage is what these tests want to know of a package, as "go list -json" says it.
type goPackage struct {
	Name, ImportPath, Dir              string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

func (p goPackage) path() string { return strings.TrimPrefix(p.ImportPath, module) }

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json", "./...").Output()
	if err != nil {
		t.Fatal("list the packages:", err)
	}
	var list []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal("read the list of packages:", err)
		}
		list = append(list, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		allowed, known := mayImport[p.path()]
		if !known && len(p.GoFiles) > 0 {
			t.Errorf("%s is not in the import table: add what it may import, and why it exists, to docs/architecture.md and here", p.path())
			continue
		}
		checkImports(t, p.path(), p.Imports, allowed)
		// Tests of the tree under test/ are about the whole and may use all of it.
		if p.path() == "test" || strings.HasPrefix(p.path(), "test/") || p.ImportPath+"/" == module {
			continue
		}
		tests := slices.Concat(p.TestImports, p.XTestImports)
		checkImports(t, "a test of "+p.path(), tests, slices.Concat(allowed, testsMayImport, []string{p.path()}))
	}
}

func checkImports(t *testing.T, who string, imports, allowed []string) {
	t.Helper()
	slices.Sort(imports)
	for _, i := range slices.Compact(imports) {
		if name, std := importName(i); !std && !slices.Contains(allowed, name) {
			t.Errorf("%s imports %s; it may import the standard library and %q", who, name, allowed)
		}
	}
}

// importName returns the import table's name of an import path.
func importName(importPath string) (name string, std bool) {
	if own, found := strings.CutPrefix(importPath, module); found {
		return own, false
	}
	for name, library := range libraries {
		if importPath == library || strings.HasPrefix(importPath, library+"/") {
			return name, false
		}
	}
	first, _, _ := strings.Cut(importPath, "/")
	return importPath, !strings.Contains(first, ".")
}

func TestLabIsNotInTheProduct(t *testing.T) {
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			name, _ := importName(i)
			if slices.Contains(laboratories.Packages, name) && !slices.Contains(labUsers[name], p.path()) {
				t.Errorf("%s imports %s, which is for tests", p.path(), name)
			}
		}
	}
}

func TestTableHasNoDeadRows(t *testing.T) {
	exists := map[string]bool{}
	for _, p := range packages(t) {
		exists[p.path()] = true
	}
	for row := range mayImport {
		if !exists[row] {
			t.Errorf("the import table has a row for %s, which does not exist", row)
		}
	}
}

func TestPackageNames(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "types", "misc", "internal"}, p.Name) {
			t.Errorf("%s: %q says nothing about what is in it", p.path(), p.Name)
		}
		if parent := path.Dir(p.path()); strings.HasPrefix(parent, "internal/") {
			t.Errorf("%s: internal is flat", p.path())
		}
	}
}
