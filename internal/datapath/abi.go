package datapath

import (
	"crypto/sha256"
	_ "embed" // the formats
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/model"
)

// innerTypes are types that are part of the ABI although no map declares them as its value.
var innerTypes = []string{"ring_header", "slot", "owners", "candidates", "snat_header", "snat_bucket", "quic_config", "quic_servers",
	"mode", "backend_state", "backend_flag", "affinity", "policy", "ring_flag", "settings_flag", "reason",
	"flow_state", "flow_event", "flow_tag", "told_outcome", "fragment_path", "snat_state", "snat_fin", "snat_proof", "asked_state", "ask_event", "quic_algorithm", "quic_event", "load_scale"}

// stateMaps are the maps whose content cannot be made again, with the types that define it besides
// the types of their keys and values. Another version that has the same maps and types goes on with
// them. A map that counts by an enum does not name the enum: see carry.go.
var stateMaps = map[string][]string{
	directorMapFlowTable:       {"flow_state"},
	directorMapFlowEvents:      nil,
	directorMapQuicEvents:      nil,
	directorMapAskEvents:       nil,
	directorMapFragments:       {"fragment_path"},
	directorMapReasons:         nil,
	directorMapBackendCounters: nil,
	directorMapBackendOpened:   nil,
	directorMapServiceDrops:    nil,
}

// formatPaths is how many values of enum fragment_path name the format of fragments. Values that
// were appended later are unknown to other versions, which drop the fragments after such an entry.
const formatPaths = 4

// Tables that keep the name of their format while later versions append states and give a meaning
// to bytes that the format left at zero. Versions before and after understand such entries, and may
// use the table at the same time. These are the types as the version that began the name declared
// them; TestFormatsHold checks that each of their fields is still where they say.
var (
	//go:embed formats/flows.txt
	flowsFormat string
	//go:embed formats/snat_table.txt
	snatFormat string
	//go:embed formats/shared_table.txt
	sharedFormat string
)

// Formats returns the formats that are part of pins' names, by what the pins are called without
// them. Limits are part of most.
func Formats(limits model.Limits) (map[string]string, error) {
	spec, err := directorSpec(Options{Limits: limits})
	if err != nil {
		return nil, err
	}
	formats := map[string]string{}
	for name, of := range map[string]func() (string, error){
		strings.TrimSuffix(mapsPrefix, "-"): func() (string, error) { return abiHash(spec) },
	} {
		if formats[name], err = of(); err != nil {
			return nil, err
		}
	}
	for name := range heldFormats {
		if formats[name], err = heldHash(spec, name); err != nil {
			return nil, err
		}
	}
	for name := range stateMaps {
		if formats[name], err = stateHash(spec, name); err != nil {
			return nil, err
		}
	}
	for name := range formerMaps {
		if formats[name], err = formerHash(spec, name); err != nil {
			return nil, err
		}
	}
	for _, record := range []string{recordServices, recordBackends, recordDirector} {
		name, format, _ := strings.Cut(record, "-")
		formats[name] = format
	}
	return formats, nil
}

// abiHash names what a program and its maps must agree on: the kinds and sizes of the maps, the
// layout of everything in them, and the numbers of enum values.
func abiHash(spec *ebpf.CollectionSpec) (string, error) {
	return hashed(func(w io.Writer) error {
		errs := []error{writeRevision(w, spec, "REVISION_MAPS"), writeRevision(w, spec, "REVISION_STATE")}
		for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
			if name == bpfload.Constants {
				continue
			}
			errs = append(errs, writeShape(w, spec.Maps[name]))
		}
		return errors.Join(append(errs, writeTypes(w, spec, innerTypes))...)
	})
}

// stateHash names what two versions must agree on to share one of the stateMaps.
func stateHash(spec *ebpf.CollectionSpec, name string) (string, error) {
	return stateHashOf(spec, name, spec.Maps[name].MaxEntries)
}

// stateHashOf is stateHash of a map with so many elements.
func stateHashOf(spec *ebpf.CollectionSpec, name string, entries uint32) (string, error) {
	shape := spec.Maps[name].Copy()
	shape.MaxEntries = entries
	var types []btf.Type
	for _, of := range stateMaps[name] {
		t, err := spec.Types.AnyTypeByName(of)
		if err != nil {
			return "", fmt.Errorf("find type %s: %w", of, err)
		}
		if path, is := t.(*btf.Enum); is && of == "fragment_path" {
			t = firstOf(path, formatPaths)
		}
		types = append(types, t)
	}
	return stateFormat(spec, shape, types...)
}

// placements count the changes of where an entry lies in a map, by its hash, where nothing else of the
// format has changed.
var placements = map[string]int{directorMapFlowTable: 1}

func stateFormat(spec *ebpf.CollectionSpec, shape *ebpf.MapSpec, types ...btf.Type) (string, error) {
	return hashed(func(w io.Writer) error {
		errs := []error{writeRevision(w, spec, "REVISION_STATE")}
		if shape.Name == formerFlows {
			fmt.Fprintln(w, shape.Name, shape.Type, shape.KeySize, shape.ValueSize, shape.MaxEntries, shape.Flags)
			_, err := io.WriteString(w, flowsFormat)
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, writeShape(w, shape))
		if n := placements[shape.Name]; n > 0 {
			fmt.Fprintln(w, "placement", n)
		}
		for _, t := range types {
			errs = append(errs, writeType(w, t.TypeName(), t))
		}
		return errors.Join(errs...)
	})
}

// heldFormats are the formats of the tables that there are only while they are needed.
var heldFormats = map[string]string{snatPin: snatFormat, sharedPin: sharedFormat}

// heldHash does the same for such a table, which is not a map of the program's own.
func heldHash(spec *ebpf.CollectionSpec, name string) (string, error) {
	return hashed(func(w io.Writer) error {
		err := writeRevision(w, spec, "REVISION_STATE")
		_, formatErr := io.WriteString(w, heldFormats[name])
		return errors.Join(err, formatErr)
	})
}

func hashed(write func(io.Writer) error) (string, error) {
	hash := sha256.New()
	if err := write(hash); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

func writeShape(w io.Writer, m *ebpf.MapSpec) error {
	fmt.Fprintln(w, m.Name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
	return errors.Join(writeType(w, "key", m.Key), writeType(w, "value", m.Value))
}

func writeTypes(w io.Writer, spec *ebpf.CollectionSpec, names []string) error {
	for _, name := range names {
		t, err := spec.Types.AnyTypeByName(name)
		if err != nil {
			return fmt.Errorf("find type %s: %w", name, err)
		}
		if err := writeType(w, name, t); err != nil {
			return err
		}
	}
	return nil
}

func writeType(w io.Writer, name string, t btf.Type) error {
	if _, none := t.(*btf.Void); t == nil || none {
		return nil
	}
	format := btf.GoFormatter{}
	text, err := format.TypeDeclaration(name, t)
	if err != nil {
		return fmt.Errorf("describe layout of %s: %w", name, err)
	}
	_, err = io.WriteString(w, text)
	return err
}

func writeRevision(w io.Writer, spec *ebpf.CollectionSpec, name string) error {
	var revisions *btf.Enum
	if err := spec.Types.TypeByName("revision", &revisions); err != nil {
		return fmt.Errorf("find enum revision: %w", err)
	}
	for _, v := range revisions.Values {
		if v.Name == name {
			_, err := fmt.Fprintln(w, v.Name, v.Value)
			return err
		}
	}
	return fmt.Errorf("enum revision has no %s", name)
}
