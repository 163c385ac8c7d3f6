package nexthop

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/bpfload"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/upkeep"
)

// onward is how packets leave by interfaces that XDP cannot send into, such as an overlay's or a
// bridge. The director's program sends them into one end of a veth pair, and a program at the other
// end makes the kernel find the neighbor and send them (bpf/small/onward.bpf.c). The pair is made when it
// is first needed. Pinned programs use it even after their process ends, so it stays until the
// datapath is detached, and the next process takes it over as it is.
type onward struct {
	log     *slog.Logger
	name    string
	egress  *device.Egress
	index   int    // of the end that the director sends into; 0: to be looked for, or made
	ours    bool   // its program is this process's
	lost    bool   // the pair was removed, and that was not reported yet
	failed  error  // why it cannot be made; it is not tried again until again is called
	problem string // failed, as it was logged last
	again   func() // has all backends looked at again
}

const (
	onwardMTU    = 65535 // the interfaces themselves have smaller MTUs
	onwardQueues = 64
	// onwardPause is how long it rests after an error. Making a pair and removing it again changes
	// the host's links, and every such change leads to another try.
	onwardPause = time.Second
)

var onwardFilter = device.Filter{Name: "weir-onward", Parent: netlink.HANDLE_MIN_INGRESS}

func newOnward(deps Deps, again func()) *onward {
	return &onward{log: deps.Log, name: OnwardName(deps.Pin), egress: device.NewEgress(deps.Generic), again: again}
}

// OnwardName is the name of the end that the director sends into. A host may have several
// datapaths.
func OnwardName(pin string) string {
	hash := sha256.Sum256([]byte(pin))
	return device.OnwardPrefix + hex.EncodeToString(hash[:3])
}

func (o *onward) otherEnd() string { return o.name + device.OtherEnd }

// forget asks for all interfaces again.
func (o *onward) forget() {
	o.egress.Forget()
	o.index = 0
}

// hop is the kernel's way to the same place: it needs no neighbor.
func (o *onward) hop(hop Hop, by netlink.Link) Hop {
	if err := o.open(); err != nil {
		if o.problem != err.Error() {
			o.log.Error("backends are not reached: XDP cannot send into the interface, and the kernel cannot be made to",
				"interface", by.Attrs().Name, "kind", by.Type(), "error", err)
			o.problem = err.Error()
		}
		return Hop{Local: hop.Local, Address: hop.Address}
	}
	o.problem = ""
	return o.hopBy(hop, by)
}

// hopBy is hop with the pair as it is, or as if the pair were there.
func (o *onward) hopBy(hop Hop, by netlink.Link) Hop {
	if o.index != 0 {
		hop.Ifindex = o.index
	}
	hop.VLAN, hop.Routed = 0, true
	binary.BigEndian.PutUint16(hop.MAC[:], uint16(onwardOnwardMacONWARD_PREFIX))
	binary.BigEndian.PutUint32(hop.MAC[2:], uint32(by.Attrs().Index))
	return hop
}

// Leaves says how packets leave for a backend, given the interface and the MAC address of its entry:
// to which next hop, if that is known, by which interface, and whether the kernel sends into that
// interface.
func (r *Resolver) Leaves(ifindex uint32, mac model.MAC, names map[uint32]string) (hop model.MAC, by string, kernel bool) {
	by = device.NameOf(ifindex, names)
	if by != r.onward.name {
		return mac, by, false
	}
	return model.MAC{}, device.NameOf(binary.BigEndian.Uint32(mac[2:]), names), true
}

// open makes the pair, or takes over the one that is there. After an error it rests.
func (o *onward) open() error {
	if o.index != 0 || o.failed != nil {
		return o.failed
	}
	if err := o.find(); err != nil {
		o.failed = fmt.Errorf("device %s: %w", o.name, err)
		time.AfterFunc(onwardPause, o.again)
	}
	return o.failed
}

func (o *onward) find() error {
	link, err := findOnward(o.name)
	switch {
	case err != nil:
	case link == nil:
		o.lost = o.lost || o.ours
		link, err = o.make()
	case !o.ours:
		err = o.attach()
	}
	if err != nil {
		return err
	}
	o.index, o.ours = link.Attrs().Index, true
	return nil
}

// findOnward finds a pair that was made completely: its first end is set up last. Nil: there is
// none.
func findOnward(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for it: %w", err)
	}
	if link.Type() != "veth" {
		return nil, fmt.Errorf("there is a %s of that name", link.Type())
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil, RemoveOnward(name)
	}
	return link, nil
}

func (o *onward) make() (link netlink.Link, err error) {
	queues, err := ebpf.PossibleCPU() // this process may be allowed fewer CPUs
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	queues = min(queues, onwardQueues) // if there are more CPUs, they share queues
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = o.name, onwardMTU, queues, queues
	ends := netlink.NewVeth(attrs)
	ends.PeerName, ends.PeerMTU = o.otherEnd(), onwardMTU
	ends.PeerNumTxQueues, ends.PeerNumRxQueues = uint32(queues), uint32(queues)
	if err := netlink.LinkAdd(ends); err != nil {
		return nil, fmt.Errorf("make veth pair: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, RemoveOnward(o.name))
		}
	}()
	// A veth takes what XDP sends if its other end coalesces. It checks that when it is set up.
	if err := device.SetEthtool(o.otherEnd(), unix.ETHTOOL_SGRO, 1); err != nil {
		return nil, fmt.Errorf("switch gro on: %w", err)
	}
	if err := o.attach(); err != nil {
		return nil, err
	}
	for _, name := range []string{o.otherEnd(), o.name} {
		if link, err = device.SetQuietlyUp(name); err != nil {
			return nil, fmt.Errorf("set %s up: %w", name, err)
		}
	}
	if device.SendingOf(link) != device.Sends {
		return nil, errors.New("XDP cannot send into a veth here either")
	}
	o.log.Info("where XDP cannot send the kernel does", "device", o.name)
	return link, nil
}

// attach gives the other end its program, in place of any before it, in one step.
func (o *onward) attach() error {
	end, err := netlink.LinkByName(o.otherEnd())
	if err != nil {
		return fmt.Errorf("other end %s: %w", o.otherEnd(), err)
	}
	spec, err := loadOnward()
	if err != nil {
		return fmt.Errorf("read its program: %w", err)
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return bpfload.Error(err)
	}
	defer collection.Close()
	return onwardFilter.Put(end.Attrs().Index, collection.Programs[onwardProgSendOnward].FD())
}

// OnwardDifferences are the differences of the device by which the kernel sends, if one is needed.
func (r *Resolver) OnwardDifferences(by upkeep.By) ([]upkeep.Difference, error) {
	text, index := r.onwardProblem()
	switch {
	case text != "":
		return []upkeep.Difference{{What: r.onward.name, Found: text, By: by.OfLink(index), Repair: r.mendOnward}}, nil
	case r.onwardLost():
		return []upkeep.Difference{{What: r.onward.name, Found: "is not there", Repair: func() error { return nil }}}, nil
	}
	return nil, nil
}

// onwardProblem says what is wrong with the pair that packets are sent into, and at which end. It
// says nothing if no pair is needed, or if none can be made, which is reported where one would be
// needed.
func (r *Resolver) onwardProblem() (text string, index int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.onward
	if o.index == 0 {
		return "", 0
	}
	for _, name := range []string{o.name, o.otherEnd()} {
		end := device.ByName(name)
		switch {
		case end == nil:
			return "is not there", o.index
		case end.Attrs().Flags&net.FlagUp == 0:
			return name + " is down", end.Attrs().Index
		case name == o.otherEnd() && !onwardFilter.IsOn(end.Attrs().Index):
			return name + " has not the program that sends", end.Attrs().Index
		}
	}
	return "", 0
}

// onwardLost reports, once, whether the pair was removed and has been made anew already, for routes
// that lead by it: these are read again when an interface goes.
func (r *Resolver) onwardLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.onward.lost && r.onward.index != 0
	if lost {
		r.onward.lost = false
	}
	return lost
}

// mendOnward makes the pair what it should be.
func (r *Resolver) mendOnward() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.onward
	o.index, o.ours, o.lost = 0, false, false
	for _, name := range []string{o.otherEnd(), o.name} {
		if device.ByName(name) == nil {
			break // the pair is made anew
		}
		if _, err := device.SetQuietlyUp(name); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	if err := o.open(); err != nil {
		return err
	}
	r.oldRoutes = true
	r.notify()
	return nil
}

// RemoveOnward removes the pair of that name, if there is one: both ends go. A device that is not
// a veth is not weir's.
func RemoveOnward(name string) error {
	link, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil && link.Type() == "veth" {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}
