package privilege_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// asDropper makes the test binary a process that drops what it does not need: what is dropped
// does not come back, so the tests cannot do it themselves.
const asDropper = "WEIR_TEST_KEEP"

func TestMain(m *testing.M) {
	if os.Getenv(asDropper) != "" {
		drop()
	}
	os.Exit(m.Run())
}

// drop keeps what an agent without namespaces needs, and says what it lacks for one with.
func drop() {
	kept, err := privilege.Keep(privilege.Agent, &model.Config{})
	fmt.Println("kept", kept, err)
	with := &model.Config{Agent: model.Agent{Namespaces: []string{"web"}}}
	fmt.Println("missing", privilege.Missing(privilege.Agent, &model.Config{}), privilege.Missing(privilege.Agent, with))
	out, err := exec.Command("/bin/sh", "-c", "grep -E '^(CapPrm|CapBnd|NoNewPrivs)' /proc/self/status").CombinedOutput()
	fmt.Printf("%serror %v\n", out, err)
	os.Exit(0)
}

func TestWhatIsDroppedStaysDropped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, who has all capabilities")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asDropper+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	const want = "kept [CAP_BPF CAP_NET_ADMIN CAP_PERFMON] <nil>\n" +
		"missing [] [CAP_SYS_ADMIN (agent.namespaces: entering other network namespaces)]\n" +
		"CapPrm:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nerror <nil>\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("what root has left after Keep differs (-want +got):\n%s", diff)
	}
}

// Each capability that a configuration asks for is required by its own key alone.
func TestAsked(t *testing.T) {
	checked := model.Service{Health: &model.HealthCheck{Kind: model.CheckHTTP}}
	for _, c := range []struct {
		config  model.Config
		process privilege.Process
		want    string
	}{
		{model.Config{}, privilege.Run, ""},
		{model.Config{Services: []model.Service{{}, checked}}, privilege.Run, "CAP_NET_RAW services[1].health"},
		{model.Config{Director: model.Director{Neighbor: model.Neighbor{Interfaces: []model.NeighborInterface{{Name: "eth0"}}}}}, privilege.Run, "CAP_NET_RAW director.neighbor"},
		{model.Config{BGP: model.BGP{Listen: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, privilege.Run, "CAP_NET_BIND_SERVICE bgp.listen"},
		{model.Config{API: model.API{Listen: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:443")}}}, privilege.Run, "CAP_NET_BIND_SERVICE api.listen"},
		{model.Config{API: model.API{ReadOnly: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")}}}, privilege.Run, "CAP_NET_BIND_SERVICE api.read-only"},
		{model.Config{API: model.API{Listen: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:6083")}}}, privilege.Run, ""},
		{model.Config{BFD: model.BFD{Neighbors: []model.BFDNeighbor{{}}}}, privilege.Run, "CAP_SYS_NICE bfd, CAP_IPC_LOCK bfd"},
		{model.Config{Agent: model.Agent{Namespaces: []string{"web"}}}, privilege.Agent, "CAP_SYS_ADMIN agent.namespaces"},
		{model.Config{Agent: model.Agent{Namespaces: []string{"web"}}}, privilege.Run, ""},
	} {
		var got []string
		for _, n := range privilege.Needs(c.process) {
			if key := n.NeededBy(&c.config); key != "" {
				got = append(got, n.Capability+" "+key)
			}
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("weir %s with %+v is asked for %q, want %q", c.process, c.config, got, c.want)
		}
	}
}

// The table of the documents is the one that the processes go by.
func TestCapabilitiesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "start", "requirements.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, p := range []privilege.Process{privilege.Run, privilege.Agent, privilege.BFD} {
		for _, n := range privilege.Needs(p) {
			want = append(want, fmt.Sprintf("| `%s` | `%s` | %s |", n.Process, n.Capability, n.For))
		}
	}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.HasPrefix(strings.TrimSpace(cells[2]), "`CAP_") {
			got = append(got, strings.Join(cells[:4], "|")+"|")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/start/requirements.md differs from what processes need (-need +document):\n%s", diff)
	}
}
