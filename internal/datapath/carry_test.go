package datapath

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/model"
)

// numbersFile has the names of all counters by their numbers, as they were given.
const numbersFile = "testdata/numbers.txt"

// TestNumbersStay: versions have the maps of counters in common, so the names of an enum that
// counts only grow at their end. Whoever appends one appends it to the file, too.
func TestNumbersStay(t *testing.T) {
	spec, err := loadDirector()
	must(t, err)
	text, err := os.ReadFile(numbersFile)
	must(t, err)
	given := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		enum, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		given[enum] = append(given[enum], name)
	}
	for _, former := range formerSizes {
		names, err := bpfload.EnumNames(spec.Types, former.enum, "")
		must(t, err)
		for i := range max(len(names), len(given[former.enum])) {
			switch {
			case i >= len(names):
				t.Errorf("enum %s has no number %d any more, which is %s", former.enum, i, given[former.enum][i])
			case i >= len(given[former.enum]):
				t.Errorf("%s has no line %q: append it", numbersFile, former.enum+" "+names[i])
			case names[i] != given[former.enum][i]:
				t.Errorf("number %d of enum %s is %s, and has to stay %s", i, former.enum, names[i], given[former.enum][i])
			}
		}
	}
}

// longer makes a version whose enums that count have one more value each.
func longer(t *testing.T) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		for _, former := range formerSizes {
			var enum *btf.Enum
			must(t, spec.Types.TypeByName(former.enum, &enum))
			last := len(enum.Values) - 1
			count := enum.Values[last]
			enum.Values = append(enum.Values[:last:last],
				btf.EnumValue{Name: "LATER_" + former.enum, Value: count.Value}, btf.EnumValue{Name: count.Name, Value: count.Value + 1})
		}
	}
}

// countedOf is what the status says of the first and the last value that all versions have.
func countedOf(t *testing.T, d *Datapath) string {
	t.Helper()
	s := statusOf(t, d)
	text := ""
	for _, c := range []model.Counter{s.Reasons[0], s.Reasons[33]} {
		text += fmt.Sprintf("%s %d %d, ", c.Name, c.Packets, c.Bytes)
	}
	for _, list := range [][]model.Tallied{s.Flows.Events[3:4], s.QUIC[3:4], s.Asks[12:13]} {
		text += fmt.Sprintf("%s %d, ", list[0].Name, list[0].Count)
	}
	return text
}

const wantCounted = "pass_not_ip 3 300, drop_source_range 4 400, flow_untold 5, quic_other 6, ask_foreign 7, "

// countAll makes the counters what wantCounted says.
func countAll(t *testing.T, m func(name string) *ebpf.Map) {
	t.Helper()
	must(t, m(directorMapReasons).Put(uint32(0), countOnce(t, 3, 300)))
	must(t, m(directorMapReasons).Put(uint32(33), countOnce(t, 4, 400)))
	for name, at := range map[string][2]uint32{directorMapFlowEvents: {3, 5}, directorMapQuicEvents: {3, 6}, directorMapAskEvents: {12, 7}} {
		must(t, writeTally(m(name), at[0], tally{packets: uint64(at[1])}))
	}
}

// TestCountersOutliveNewReasons: a version that has appended reasons and events goes on with what
// was counted, and so does the version before, after it.
func TestCountersOutliveNewReasons(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openVersion(t, nil)
	must(t, d.Set(tableOf(1, 1, 0)))
	countAll(t, func(name string) *ebpf.Map { return d.kernel.all[name] })
	for _, differs := range []func(*ebpf.CollectionSpec){longer(t), nil, longer(t)} {
		must(t, d.Close())
		d = openVersion(t, differs)
		if d.kernel.adopted {
			t.Fatal("the maps of another ABI were adopted")
		}
		must(t, d.Set(tableOf(1, 1, 0)))
		if got := countedOf(t, d); got != wantCounted {
			t.Errorf("counted is %q, want %q", got, wantCounted)
		}
		if n := len(d.kernel.reasons); differs != nil && d.kernel.reasons[n-1] != "later_reason" {
			t.Errorf("the last reason is %s, want the appended one", d.kernel.reasons[n-1])
		}
		wantTidy(t, d)
	}
}

// formerPins are the names under which versions up to b0b593b pin what they count.
var formerPins = map[string]string{
	directorMapReasons:    "reasons-4cb8e638688cda56",
	directorMapFlowEvents: "flow_events-c95d8fa22f133199",
	directorMapQuicEvents: "quic_events-bc6f88a59ee8d37c",
	directorMapAskEvents:  "ask_events-6975ba5b84b195d0",
}

// TestCountersOfTheFormatBefore: what versions have counted that gave each reason one place goes
// on, from the first look at it, and is carried over once.
func TestCountersOfTheFormatBefore(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must(t, os.MkdirAll("/sys/fs/bpf/weir/state", 0o700))
	former := map[string]*ebpf.Map{}
	for name, pin := range formerPins {
		shape := &ebpf.MapSpec{Name: name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: formerSizes[name].values}
		if name == directorMapReasons {
			shape.ValueSize = 16
		}
		m, err := ebpf.NewMap(shape)
		must(t, err)
		t.Cleanup(func() { m.Close() })
		must(t, m.Pin("/sys/fs/bpf/weir/state/"+pin))
		former[name] = m
	}
	countAll(t, func(name string) *ebpf.Map { return former[name] })
	d := openVersion(t, nil)
	if got := countedOf(t, d); got != wantCounted {
		t.Errorf("before the switch counted is %q, want %q", got, wantCounted)
	}
	for range 2 {
		must(t, d.Set(tableOf(1, 1, 0)))
		if got := countedOf(t, d); got != wantCounted {
			t.Errorf("counted is %q, want %q", got, wantCounted)
		}
		wantTidy(t, d)
		must(t, d.Close())
		d = openVersion(t, nil)
	}
	for _, path := range pinnedTree(t) {
		for _, pin := range formerPins {
			if strings.HasSuffix(path, "/"+pin) {
				t.Errorf("%s is left over", path)
			}
		}
	}
}
