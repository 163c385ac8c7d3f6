package agent

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/model"
)

// redirector is the part of an agent by which connections bypass directors. It is loaded when a
// service is redirected for the first time; on hosts without such a service nothing of it is
// loaded.
type redirector struct {
	*redirectObjects
	dir     string // where maps are pinned
	list    []redirect
	indexes map[netip.AddrPort]uint32
	tables  redirectTables
	ports   map[uint32]uint32 // bridges, by their ports
	guards  guards
}

// redirectDirectories begin the names of directories with maps in the agent's state. Their content
// cannot be made again, so all versions that read the same format share one.
const redirectDirectories = "redirect-"

// formatEvents is the number of events that goes into the format's name. Events that were appended
// since are counted where there was room, and their names change nothing for connections.
const formatEvents = 25

// redirectFormat names what programs of two versions must agree about.
func redirectFormat(spec *ebpf.CollectionSpec) (string, error) {
	var events *btf.Enum
	if err := spec.Types.TypeByName("redirect_event", &events); err != nil {
		return "", fmt.Errorf("find enum redirect_event: %w", err)
	}
	first := *events
	first.Values = append(slices.Clone(events.Values[:formatEvents]), btf.EnumValue{Name: "REDIRECT_EVENT_COUNT", Value: formatEvents})
	return formatOf(spec, isProgramsOwn, &first), nil
}

// isProgramsOwn says whether each program has a map of that name of its own.
func isProgramsOwn(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "guard") || name == "neighbors" || name == "redirect_quotas"
}

// openRedirector loads the programs with the maps that are pinned, or pins new ones.
func openRedirector(state string) (*redirector, error) {
	spec, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("read programs of redirection: %w", err)
	}
	format, err := redirectFormat(spec)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(state, redirectDirectories+format)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make map directory: %w", err)
	}
	for name, m := range spec.Maps {
		if !isProgramsOwn(name) {
			m.Pinning = ebpf.PinByName
		}
	}
	if err := markSent(spec); err != nil {
		return nil, err
	}
	r := &redirector{redirectObjects: new(redirectObjects), dir: dir}
	if err := spec.LoadAndAssign(r.redirectObjects, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}}); err != nil {
		return nil, fmt.Errorf("load programs of redirection (needs Linux 6.1): %w", err)
	}
	if err := r.seed(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// markSent gives these programs a number of their own (sent_mark). It is never 0, because the
// control bytes of most packets begin with 0.
func markSent(spec *ebpf.CollectionSpec) error {
	if err := spec.Variables["sent_mark"].Set(rand.Uint32() | 1); err != nil {
		return fmt.Errorf("set sent_mark: %w", err)
	}
	return nil
}

// Indexes of redirect_memory, which all programs that share the maps of connections share.
const (
	remembered = uint32(redirectRedirectNumberREDIRECT_REMEMBERED)
	foundEmpty = uint32(redirectRedirectNumberREDIRECT_FOUND_EMPTY)
	seedIndex  = uint32(redirectRedirectNumberREDIRECT_SEED)
)

// seed initializes a memory that is new. Its seed is a secret of this host.
func (r *redirector) seed() error {
	var now uint64
	if err := r.RedirectMemory.Lookup(seedIndex, &now); err != nil {
		return fmt.Errorf("read the seed of redirection: %w", err)
	}
	if now != 0 {
		return nil
	}
	random := make([]byte, 8)
	_, _ = crand.Read(random) // it never fails
	if err := errors.Join(r.RedirectMemory.Put(remembered, uint64(1)), r.RedirectMemory.Put(seedIndex, binary.NativeEndian.Uint64(random)|1)); err != nil {
		return fmt.Errorf("begin with nothing that is redirected: %w", err)
	}
	return nil
}

// wasRedirecting says whether an agent before this one has left connections.
func wasRedirecting(state string) bool {
	dirs, err := filepath.Glob(filepath.Join(state, redirectDirectories+"*"))
	return err == nil && len(dirs) > 0
}

// forgetOtherFormats removes the maps of programs of other formats, which no longer run.
func forgetOtherFormats(state string) error {
	spec, err := loadRedirect()
	if err != nil {
		return fmt.Errorf("read programs of redirection: %w", err)
	}
	format, err := redirectFormat(spec)
	if err != nil {
		return err
	}
	return removeOthers(filepath.Join(state, redirectDirectories+"*"), filepath.Join(state, redirectDirectories+format))
}

// set writes the list into the maps. Connections stay as they are.
func (r *redirector) set(list []redirect) error {
	known, err := readAll[redirectHostEndpoint](r.RedirectVips)
	if err != nil {
		return err
	}
	t, err := newRedirectTables(list, known, r.RedirectServices.MaxEntries())
	if err != nil {
		return err
	}
	if err := r.clear(t.fresh); err != nil {
		return err
	}
	if err := contents.PutAll(r.maps(&t)); err != nil {
		return err
	}
	r.list, r.tables, r.indexes = list, t, make(map[netip.AddrPort]uint32, len(list))
	for _, s := range list {
		r.indexes[s.vip] = t.vips[redirectEndpoint(s.vip)]
	}
	if err := errors.Join(r.guard(), r.count()); err != nil {
		return err
	}
	return contents.PruneAll(r.maps(&t))
}

// maps are those of these tables, in the order in which they are written: a SYN asks only when
// everything that its answer needs is there.
func (r *redirector) maps(t *redirectTables) []contents.Map {
	return []contents.Map{
		contents.Within("redirect_services", r.RedirectServices, t.services),
		contents.Whole("redirect_prefixes", r.RedirectPrefixes, t.prefixes),
		contents.Whole("redirect_names", r.RedirectNames, t.names),
		contents.Whole("redirect_here", r.RedirectHere, t.here),
		contents.Whole("redirect_vips", r.RedirectVips, t.vips),
	}
}

// compared are all maps of redirection.
func (r *redirector) compared() []contents.Map {
	return slices.Concat(
		[]contents.Map{contents.Whole("redirect_ports", r.RedirectPorts, r.ports)},
		r.maps(&r.tables),
		[]contents.Map{contents.Whole("guard_sources", r.GuardSources, r.guards.sources()), contents.Whole("guards", r.Guards, r.guards.at)})
}

// setPorts says which uplinks are ports of which bridges.
func (r *redirector) setPorts(uplinks []uplink) error {
	ports := map[uint32]uint32{}
	for _, u := range uplinks {
		if u.bridge != 0 {
			ports[uint32(u.index)] = uint32(u.bridge)
		}
	}
	r.ports = ports
	return errors.Join(contents.Put(r.RedirectPorts, ports), contents.Prune(r.RedirectPorts, ports))
}

// clear makes indexes count from zero for the services that have them now.
func (r *redirector) clear(indexes []uint32) error {
	cpus := ebpf.MustPossibleCPU()
	for _, index := range indexes {
		err := r.RedirectCounters.Put(index, make([]redirectRedirectCounter, cpus))
		for event := range uint32(redirectRedirectEventREDIRECT_EVENT_COUNT) {
			err = errors.Join(err, r.RedirectEvents.Put(eventIndex(index, event), make([]uint64, cpus)))
		}
		if err != nil {
			return fmt.Errorf("clear counters of redirection %d: %w", index, err)
		}
	}
	return nil
}

// count counts the connections for the services' quotas.
func (r *redirector) count() error {
	counts := make(map[uint32]redirectHostQuota, len(r.indexes)+1)
	for _, index := range r.indexes {
		counts[index] = redirectHostQuota{}
	}
	err := eachEntry(r.RedirectLeaving, func(_ redirectHostFlow, way redirectRedirectWay) {
		for _, index := range []uint32{0, way.Service} { // 0: all services
			of := counts[index]
			of.Counted++
			counts[index] = of
		}
	})
	if err != nil {
		return err
	}
	return contents.Put(r.RedirectQuotas, counts)
}

// eventIndex is where an event of a service is counted (REDIRECT_EVENTS_SHIFT).
func eventIndex(service, event uint32) uint32 { return service<<5 | event }

func redirectAddressOf(a netip.Addr) redirectAddress { return redirectAddress{Bytes: a.As16()} }

func redirectEndpoint(a netip.AddrPort) redirectHostEndpoint {
	return redirectHostEndpoint{Address: redirectAddressOf(a.Addr()), Port: networkOrder(a.Port()), Protocol: unix.IPPROTO_TCP}
}

func redirectNameKey(n optionName) redirectRedirectName {
	key := redirectRedirectName{Tail: binary.NativeEndian.Uint32(n.tail[:]), Port: networkOrder(n.port)}
	if n.ipv6 {
		key.Ipv6 = 1
	}
	return key
}

func prefixKey(service uint32, p netip.Prefix) redirectRedirectPrefix {
	const before = 32 // bits of the service
	source := sourceKey(p)
	return redirectRedirectPrefix{PrefixLen: before + source.PrefixLen, Service: service, Address: redirectAddress(source.Address)}
}

// status reads what each service has counted, and how many connections there are.
func (r *redirector) status() ([]model.AgentRedirect, error) {
	names, err := redirectEventNames()
	if err != nil {
		return nil, err
	}
	connections := map[uint32]int{}
	err = eachEntry(r.RedirectLeaving, func(_ redirectHostFlow, way redirectRedirectWay) { connections[way.Service]++ })
	if err != nil {
		return nil, err
	}
	var list []model.AgentRedirect
	for _, s := range r.list {
		index := r.indexes[s.vip]
		status := model.AgentRedirect{Name: s.name, VIP: s.vip, Connections: connections[index]}
		var perCPU []redirectRedirectCounter
		if err := r.RedirectCounters.Lookup(index, &perCPU); err != nil {
			return nil, fmt.Errorf("counters of redirection of %s: %w", s.name, err)
		}
		for _, c := range perCPU {
			status.SentPackets += c.SentPackets
			status.SentBytes += c.SentBytes
			status.ReceivedPackets += c.ReceivedPackets
			status.ReceivedBytes += c.ReceivedBytes
		}
		for event, name := range names {
			sum, err := r.counted(index, redirectRedirectEvent(event))
			if err != nil {
				return nil, fmt.Errorf("event %s of %s: %w", name, s.name, err)
			}
			status.Events = append(status.Events, model.Tallied{Name: name, Count: sum})
			if event == int(redirectRedirectEventREDIRECT_TAKEN) {
				status.Opened = sum
			}
		}
		list = append(list, status)
	}
	return list, nil
}

// counted is how often an event of a service was counted.
func (r *redirector) counted(index uint32, event redirectRedirectEvent) (sum uint64, err error) {
	var counts []uint64
	if err := r.RedirectEvents.Lookup(eventIndex(index, uint32(event)), &counts); err != nil {
		return 0, err
	}
	for _, n := range counts {
		sum += n
	}
	return sum, nil
}

func redirectEventNames() ([]string, error) {
	spec, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("read programs of redirection: %w", err)
	}
	return bpfload.EnumNames(spec.Types, "redirect_event", "REDIRECT_")
}
