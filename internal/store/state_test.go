package store

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// service returns a service of which every field has a value that is not its zero.
func service(name string, last byte, backends int) model.Service {
	mode := model.IPIP
	s := model.Service{
		Name: name, Segment: model.Segment{Kind: model.SegmentVLAN, ID: 7}, VIP: netip.AddrFrom4([4]byte{203, 0, 113, last}),
		Protocol: model.TCP, Port: model.PortRange{First: 80, Last: 81}, Mode: model.NAT, SNAT: true,
		Affinity: model.AffinitySourceIP, RingSize: 1021, Backends: []model.Backend{},
	}
	for i := range backends {
		s.Backends = append(s.Backends, model.Backend{
			Name: fmt.Sprintf("b%d", i), Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 8080, Weight: 3,
			State: model.Draining, Mode: &mode, MAC: model.MAC{2, 0, 0, 0, 0, 1}, VLAN: 9, MTU: 1400,
		})
	}
	return s
}

var begin = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

// count is an advance for tests: each call adds a generation.
func count(log model.Log, s model.Service) model.Log {
	number := uint64(1)
	if len(log.Generations) > 0 {
		number = log.Generations[0].Number + 1
	}
	newest := model.Generation{Number: number, Since: begin, Slots: 1021, Members: []model.Member{}}
	for _, b := range s.Backends {
		newest.Members = append(newest.Members, model.Member{Backend: netip.AddrPortFrom(b.Address, b.Port), Weight: b.Weight})
	}
	return model.Log{Generations: append([]model.Generation{newest}, log.Generations...)}
}

// newestOnly is a trim for tests.
func newestOnly(log model.Log, _ model.Service) model.Log {
	return model.Log{Generations: log.Generations[:1]}
}

// must returns the state after a change that is allowed.
func must(t *testing.T, s State, change Change) State {
	t.Helper()
	next, err := change(s)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func TestReplaceAdvancesTheLogOfTheSameService(t *testing.T) {
	a, b := service("a", 1, 1), service("b", 2, 2)
	first := must(t, State{}, Replace("cli", []model.Service{a, b}, count))
	renamed := a
	renamed.Name = "c"
	second := must(t, first, Replace("cli", []model.Service{renamed}, count))
	documents := second.Sets["cli"].Documents
	if len(documents) != 1 || documents[0].Service.Name != "c" || len(documents[0].Log.Generations) != 2 {
		t.Errorf("a service with another name has the documents %v, want one with two generations", documents)
	}
	if len(first.Sets["cli"].Documents) != 2 || len(first.Sets["cli"].Documents[0].Log.Generations) != 1 {
		t.Error("the change altered the state that it was given")
	}
	trimmed := must(t, second, Trim(newestOnly))
	if n := len(trimmed.Documents()[0].Log.Generations); n != 1 {
		t.Errorf("a trimmed log has %d generations, want 1", n)
	}
	if n := len(second.Documents()[0].Log.Generations); n != 2 {
		t.Errorf("trimming left %d generations in the state that it was given, want 2", n)
	}
}

func TestConflictsNameBothOwners(t *testing.T) {
	kube := must(t, State{}, Replace("kube", []model.Service{service("web", 1, 1)}, count))
	for name, test := range map[string]struct {
		services []model.Service
		want     []string
	}{
		"the same ID":   {[]model.Service{service("other", 1, 0)}, []string{"203.0.113.1 tcp port 80-81 in segment vlan:7", `"kube"`, `"cli"`, `"web"`, `"other"`}},
		"the same name": {[]model.Service{service("web", 2, 0)}, []string{`the name "web"`, `"kube"`, `"cli"`}},
		"within a set":  {[]model.Service{service("x", 3, 0), service("y", 3, 0)}, []string{"203.0.113.3", `"x"`, `"y"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Replace("cli", test.services, count)(kube)
			if err == nil {
				t.Fatal("is accepted")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not say %s: %v", part, err)
				}
			}
		})
	}
	_, err := Replace("cli", []model.Service{service("other", 1, 0), service("free", 2, 0), service("web", 3, 0)}, count)(kube)
	conflict := (*ConflictError)(nil)
	if !errors.As(err, &conflict) || len(conflict.All()) != 2 || strings.Count(err.Error(), "can have one owner") != 2 {
		t.Errorf("of two conflicts it says %v", err)
	}
	var many []model.Service
	for i := range 3 * mostConflicts {
		many = append(many, service(fmt.Sprint("s", i), 1, 0))
	}
	if _, err := Replace("cli", many, count)(kube); !errors.As(err, &conflict) || len(conflict.All()) != mostConflicts {
		t.Errorf("of many conflicts %d are told, want %d", len(conflict.All()), mostConflicts)
	}
	other := service("other", 1, 0)
	other.Protocol = model.UDP
	if _, err := Replace("cli", []model.Service{other}, count)(kube); err != nil {
		t.Error("another protocol of the same VIP is refused:", err)
	}
}

func TestOwnerNames(t *testing.T) {
	for _, good := range []string{"file", "cli", "0", "ci-pipeline_2.x", strings.Repeat("a", 63)} {
		if err := model.CheckOwner(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "..", ".hidden", "a/b", "A", "é", "a b", "-x", "a\n", strings.Repeat("a", 64)} {
		if model.CheckOwner(bad) == nil {
			t.Errorf("%q is accepted as an owner", bad)
		}
		if _, err := Replace(bad, nil, count)(State{}); err == nil {
			t.Errorf("%q can have a set", bad)
		}
	}
}
