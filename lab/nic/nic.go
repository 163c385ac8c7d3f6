// Package nic gives interfaces of a lab a NIC with a flow table. A veth has none, and no other driver that a
// virtual machine is likely to have steers flows. So a program at the veth's other end chooses the receive
// queue of each packet, by rules that weir inserts. Weir does that by its adapter for labs, if it is built with
// the tag emulated_nic (internal/steering/host_emulated.go); test/nic has the real interface between weir and
// drivers.
package nic

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir.io/weir/internal/device"
	"weir.io/weir/lab/netlab"
)

//go:generate ../../bpf/generate -no-global-types -type card_flow -type card_rule nic bpf/nic.bpf.c

// Directory is the variable of the environment that says where a host's cards are pinned.
const Directory = "WEIR_EMULATED_NICS"

const rssSize = 16 // RSS_SIZE

// Emulate gives the port of a link a NIC with that many queues, and room for so many rules. from is the
// link's other end. Only forwarded packets are steered: the kernel keeps a socket's queue to itself.
func Emulate(port, from *netlab.Port, queues uint32, room int) (*Emulated, error) {
	spec, err := loadNic()
	if err != nil {
		return nil, fmt.Errorf("read the card's object: %w", err)
	}
	spec.Maps["card_rules"].MaxEntries = uint32(room)
	e := &Emulated{}
	if err := spec.LoadAndAssign(&e.objects, nil); err != nil {
		return nil, fmt.Errorf("load the card: %w", err)
	}
	err = from.Host.Do(func() (err error) {
		e.attached, err = link.AttachTCX(link.TCXOptions{Program: e.objects.Card, Interface: from.Index, Attach: ebpf.AttachTCXEgress})
		return err
	})
	if err == nil {
		err = e.pin(port, queues)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("give %s of %s a card: %w", port.Name, port.Host.Name, err), e.Close())
	}
	return e, nil
}

// Emulated is the card of a port.
type Emulated struct {
	objects  nicObjects
	attached link.Link
}

func (e *Emulated) pin(port *netlab.Port, queues uint32) error {
	dir := port.Host.BPFFS()
	for name, m := range map[string]*ebpf.Map{rulesPin: e.objects.CardRules, rssPin: e.objects.CardRss} {
		if err := m.Pin(filepath.Join(dir, name+port.Name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(port.Host.Dir(), queuesFile+port.Name), fmt.Append(nil, queues), 0o600); err != nil {
		return err
	}
	return open(port.Name, queues, e.objects.CardRules, e.objects.CardRss).GiveBack(nil)
}

// Rules is how many rules the card has.
func (e *Emulated) Rules() (n int, err error) {
	keys, err := e.keys()
	return len(keys), err
}

// Forget empties the card, as a driver's reset does.
func (e *Emulated) Forget() error {
	keys, err := e.keys()
	errs := []error{err}
	for i := range keys {
		errs = append(errs, ignoreMissing(e.objects.CardRules.Delete(keys[i])))
	}
	return errors.Join(errs...)
}

// Close takes the card out.
func (e *Emulated) Close() error {
	var errs []error
	if e.attached != nil {
		errs = append(errs, e.attached.Close())
	}
	return errors.Join(append(errs, e.objects.Close())...)
}

// What a card's maps are called beside the interface's name.
const (
	rulesPin   = "nic-rules-"
	rssPin     = "nic-rss-"
	queuesFile = "nic-queues-"
)

// Card is what weir sees of an emulated NIC: as device.NIC.
type Card struct {
	name       string
	queues     uint32
	rules, rss *ebpf.Map

	mu    sync.Mutex
	known map[uint32]nicCardFlow // by location, of the last Able
}

func open(name string, queues uint32, rules, rss *ebpf.Map) *Card {
	return &Card{name: name, queues: queues, rules: rules, rss: rss, known: map[uint32]nicCardFlow{}}
}

// cards are opened once for a process.
var (
	cardsMu sync.Mutex
	cards   = map[string]*Card{}
)

// Find returns the card of an interface of this host; nil: it has none.
func Find(name string) *Card {
	cardsMu.Lock()
	defer cardsMu.Unlock()
	if c := cards[name]; c != nil {
		return c
	}
	dir := os.Getenv(Directory)
	rules, err := ebpf.LoadPinnedMap(filepath.Join(dir, rulesPin+name), nil)
	if err != nil {
		return nil
	}
	rss, err := ebpf.LoadPinnedMap(filepath.Join(dir, rssPin+name), nil)
	if err != nil {
		return nil
	}
	var queues uint32
	text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), queuesFile+name))
	if _, scan := fmt.Sscan(string(text), &queues); err != nil || scan != nil {
		return nil
	}
	cards[name] = open(name, queues, rules, rss)
	return cards[name]
}

// Able returns the flow table if flows can be led to these queues.
func (c *Card) Able(queues []uint32) (device.RuleTable, error) {
	if most := slices.Max(append(slices.Clone(queues), 0)); most >= c.queues {
		return device.RuleTable{}, fmt.Errorf("%s has %d receive queues, and queue %d is to be for flows with rules", c.name, c.queues, most)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.known)
	table := device.RuleTable{Size: int(c.rules.MaxEntries())}
	var flow nicCardFlow
	var rule nicCardRule
	entries := c.rules.Iterate()
	for entries.Next(&flow, &rule) {
		c.known[rule.Location] = flow
		table.Locations = append(table.Locations, rule.Location)
	}
	return table, entries.Err()
}

// Rule returns the rule that lies somewhere.
func (c *Card) Rule(location uint32) (device.Rule, bool, error) {
	c.mu.Lock()
	flow, known := c.known[location]
	c.mu.Unlock()
	var rule nicCardRule
	err := ebpf.ErrKeyNotExist
	if known {
		err = c.rules.Lookup(flow, &rule)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && rule.Location != location {
		return device.Rule{}, false, fmt.Errorf("%s: read rule %d: %w", c.name, location, device.ErrNoRule)
	}
	return device.Rule{Flow: flowOf(&flow), Queue: rule.Queue, Location: location}, true, err
}

// Insert adds a rule.
func (c *Card) Insert(r device.Rule, _ bool) (location uint32, err error) {
	flow := keyOf(r.Flow)
	if err := c.rules.Put(flow, nicCardRule{Queue: r.Queue, Location: r.Location}); err != nil {
		return 0, fmt.Errorf("%s: insert a rule for %v to queue %d: %w", c.name, r.Flow.Source, r.Queue, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[r.Location] = flow
	return r.Location, nil
}

// Delete takes a rule out.
func (c *Card) Delete(location uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	flow, known := c.known[location]
	if !known {
		return fmt.Errorf("%s: delete rule %d: %w", c.name, location, os.ErrNotExist)
	}
	delete(c.known, location)
	var rule nicCardRule
	err := c.rules.Lookup(flow, &rule)
	if err == nil && rule.Location != location { // another user's
		err = os.ErrNotExist
	}
	if err == nil {
		err = c.rules.Delete(flow)
	}
	if err != nil {
		return fmt.Errorf("%s: delete rule %d: %w", c.name, location, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// Keep keeps packets without a rule off queues.
func (c *Card) Keep(queues []uint32) error { return c.spread(queues) }

// GiveBack undoes it.
func (c *Card) GiveBack([]uint32) error { return c.spread(nil) }

// spread writes the indirection table without some queues.
func (c *Card) spread(without []uint32) error {
	var stay []uint32
	for q := range c.queues {
		if !slices.Contains(without, q) {
			stay = append(stay, q)
		}
	}
	var errs []error
	for i := range uint32(rssSize) {
		errs = append(errs, c.rss.Put(i, stay[int(i)%len(stay)]))
	}
	return errors.Join(errs...)
}

func keyOf(f device.RuleFlow) (key nicCardFlow) {
	copy(key.Source[:], f.Source.Addr().AsSlice())
	copy(key.Destination[:], f.Destination.Addr().AsSlice())
	key.SourcePort, key.DestinationPort = swap(f.Source.Port()), swap(f.Destination.Port())
	key.Protocol = f.Protocol
	if f.Source.Addr().Is6() {
		key.Ipv6 = 1
	}
	return key
}

func flowOf(key *nicCardFlow) device.RuleFlow {
	address := func(bytes [16]uint8) netip.Addr {
		if key.Ipv6 != 0 {
			return netip.AddrFrom16(bytes)
		}
		return netip.AddrFrom4([4]byte(bytes[:4]))
	}
	return device.RuleFlow{Protocol: key.Protocol, Source: netip.AddrPortFrom(address(key.Source), swap(key.SourcePort)),
		Destination: netip.AddrPortFrom(address(key.Destination), swap(key.DestinationPort))}
}

// swap is a port in network order, or back.
func swap(port uint16) uint16 { return port>>8 | port<<8 }
