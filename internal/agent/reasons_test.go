package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/model"
)

// numbersFile has the names of all counters by their numbers, as they were given.
const numbersFile = "testdata/numbers.txt"

// TestNumbersStay: versions have the counters in common, so the names of an enum that counts
// only grow at their end. Whoever appends one appends it to the file, too.
func TestNumbersStay(t *testing.T) {
	text, err := os.ReadFile(numbersFile)
	if err != nil {
		t.Fatal(err)
	}
	given := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		enum, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		given[enum] = append(given[enum], name)
	}
	reasons, err := reasonNames()
	if err != nil {
		t.Fatal(err)
	}
	events, err := redirectEventNames()
	if err != nil {
		t.Fatal(err)
	}
	for enum, names := range map[string][]string{"host_reason": reasons, "redirect_event": events} {
		for i := range max(len(names), len(given[enum])) {
			switch {
			case i >= len(names):
				t.Errorf("enum %s has no number %d any more, which is %s", enum, i, given[enum][i])
			case i >= len(given[enum]):
				t.Errorf("%s has no line %q: append it", numbersFile, enum+" "+names[i])
			case names[i] != given[enum][i]:
				t.Errorf("number %d of enum %s is %s, and has to stay %s", i, enum, names[i], given[enum][i])
			}
		}
	}
}

// append1 makes an enum one value longer, before the one that counts them.
func append1(t *testing.T, spec *ebpf.CollectionSpec, name string) {
	t.Helper()
	var enum *btf.Enum
	if err := spec.Types.TypeByName(name, &enum); err != nil {
		t.Fatal(err)
	}
	last := len(enum.Values) - 1
	count := enum.Values[last]
	enum.Values = append(enum.Values[:last:last],
		btf.EnumValue{Name: "LATER", Value: count.Value}, btf.EnumValue{Name: count.Name, Value: count.Value + 1})
}

// TestAppendedNamesKeepFormats: a version that counts something more goes on with the maps that
// are there, those of connections among them.
func TestAppendedNamesKeepFormats(t *testing.T) {
	host, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	before := abi(host)
	append1(t, host, "host_reason")
	if now := abi(host); now != before {
		t.Errorf("the maps' ABI is %s, was %s before a reason was appended", now, before)
	}
	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	given, err := redirectFormat(spec)
	if err != nil {
		t.Fatal(err)
	}
	append1(t, spec, "redirect_event")
	if format, err := redirectFormat(spec); err != nil || format != given {
		t.Errorf("the format of redirected connections is %s, error %v; was %s before an event was appended", format, err, given)
	}
}

// TestReasonsOutliveVersions: what a version has counted whose map had one place for each reason
// goes on, from the first look at it, and is carried over once.
func TestReasonsOutliveVersions(t *testing.T) {
	s := newStreet(t, true)
	dir := filepath.Join(s.host.BPFFS(), "agent", "maps-former")
	do(t, s.host, "count as a version before", func() error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 31})
		if err != nil {
			return err
		}
		defer m.Close()
		all := make([]bpfCounter, ebpf.MustPossibleCPU())
		all[0], all[len(all)-1] = bpfCounter{Packets: 2, Bytes: 200}, bpfCounter{Packets: 3, Bytes: 300}
		if err := m.Put(uint32(30), all); err != nil {
			return err
		}
		return m.Pin(filepath.Join(dir, reasonsName))
	})
	wants := func(a *Agent, when string) {
		t.Helper()
		r := s.status(t, a).Reasons[30]
		if want := (model.Counter{Name: "clamp_absent", Packets: 5, Bytes: 500}); r != want {
			t.Errorf("%s: counted is %v, want %v", when, r, want)
		}
	}
	var a *Agent
	for range 2 {
		do(t, s.host, "start agent", func() (err error) {
			if a, err = Open(Deps{Pin: s.host.BPFFS(), Log: slog.New(slog.DiscardHandler)}); err != nil {
				return err
			}
			wants(a, "before the switch")
			return a.Set(testConfig())
		})
		wants(a, "after it")
		a.version = "another" // its maps go, as those of a version before
		do(t, s.host, "refresh", func() error { return a.Set(testConfig()) })
		wants(a, "without the version's maps")
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	do(t, s.host, "look", func() error {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left over", dir)
		}
		return Detach(s.host.BPFFS())
	})
}
