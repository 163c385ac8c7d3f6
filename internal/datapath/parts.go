package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/contents"
	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/upkeep"
)

// Groups are the groups of rtnetlink that report changes of the parts. No group reports that a
// program was taken off an interface through its link, nor changes of pins and of most sysctls.
var Groups = []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}

// Parts are the parts of this host that the datapath owns, as docs/operate/upkeep.md lists them.
func (d *Datapath) Parts(by upkeep.By) []upkeep.Part {
	return []upkeep.Part{
		d.kernel.sole.Part(),
		{Name: "interfaces", Look: d.whileItRuns(d.interfaceDifferences)},
		{Name: "pins", Look: d.whileItRuns(d.pinDifferences)}, // before everything that is pinned
		{Name: "tables", Look: d.contentDifferences},
		{Name: "xdp", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.xdpDifferences(by) })},
		{Name: "tc", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.tcDifferences(by) })},
		{Name: "sysctls", Look: d.whileItRuns(d.sysctlDifferences)},
		{Name: "onward", Look: d.whileItRuns(func() ([]upkeep.Difference, error) { return d.hops.OnwardDifferences(by) })},
	}
}

// whileItRuns compares with the table of the last Set that has succeeded: a datapath that has not
// begun, or has ended, owns nothing.
func (d *Datapath) whileItRuns(look func() ([]upkeep.Difference, error)) func() ([]upkeep.Difference, error) {
	return func() ([]upkeep.Difference, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.begun || d.closed() || !d.kernel.inUse {
			return nil, nil
		}
		return look()
	}
}

// locked makes a repair hold the lock.
func (d *Datapath) locked(repair func() error) func() error {
	return func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.closed() {
			return nil // closed meanwhile: it no longer owns anything
		}
		return repair()
	}
}

// interfaceDifferences are the interfaces that weir waits for: it neither makes interfaces nor sets
// them up.
func (d *Datapath) interfaceDifferences() (found []upkeep.Difference, err error) {
	for i, link := range d.findInterfaces(d.table.Interfaces) {
		name := d.table.Interfaces[i]
		if text := d.wrongWith(name, link); text != "" {
			found = append(found, upkeep.Difference{What: name, Found: text})
		}
	}
	return append(found, d.ownMACDifference()...), nil
}

// wrongWith says what is wrong with an interface of the table.
func (d *Datapath) wrongWith(name string, link netlink.Link) string {
	if link == nil {
		if kept := d.keptFor(); len(kept) > 0 {
			return "is not there: " + strings.Join(kept, ", ") + " stays attached until it is"
		}
		return "is not there"
	}
	attrs := link.Attrs()
	switch {
	case attrs.Flags&net.FlagUp == 0:
		return "is down"
	case attrs.OperState == netlink.OperDown || attrs.OperState == netlink.OperLowerLayerDown:
		return "has no carrier"
	}
	return ""
}

// Renamed are the interfaces that the table calls by an old name, with their present names.
func (d *Datapath) Renamed() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	renamed := map[string]string{}
	for i, link := range d.links {
		name := d.table.Interfaces[i]
		if link != nil && link.Attrs().Name != name && !slices.Contains(link.Attrs().AltNames, name) {
			renamed[name] = link.Attrs().Name
		}
	}
	return renamed
}

// keptFor are the interfaces that are no longer in the table, and keep the program until all
// interfaces of the table are there.
func (d *Datapath) keptFor() (kept []string) {
	for name := range d.attached {
		if !slices.Contains(d.table.Interfaces, name) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept
}

// xdpDifferences are the interfaces that are there and do not have the director's program.
func (d *Datapath) xdpDifferences(by upkeep.By) (found []upkeep.Difference, err error) {
	if d.holds {
		return nil, nil
	}
	want, err := idOf(d.attaching())
	if err != nil {
		return nil, err
	}
	for i, link := range d.findInterfaces(d.table.Interfaces) {
		if link == nil {
			continue
		}
		name, a := d.table.Interfaces[i], d.attached[d.table.Interfaces[i]]
		difference := upkeep.Difference{What: link.Attrs().Name, By: by.OfLink(link.Attrs().Index)}
		switch {
		case a == nil || a.index != link.Attrs().Index || !a.holds():
			difference.Found = "has not the director's program"
			difference.Repair = d.inDirectory(func() error { return d.attachAgain(name) })
		case a.program() != want:
			difference.Found = fmt.Sprintf("has program %d instead of the director's", a.program())
			difference.Repair = d.locked(func() error { return a.link.Update(d.attaching()) })
		case d.isOtherMode(xdpMode(link.Attrs().Index)):
			difference.Found = fmt.Sprintf("has the program in mode %s, and director.xdp is %s: it did not take it so", xdpMode(link.Attrs().Index), d.options.Mode)
		default:
			continue
		}
		found = append(found, difference)
	}
	return found, nil
}

// attachAgain attaches to an interface whose link is gone, or was detached.
func (d *Datapath) attachAgain(name string) error {
	link := d.findInterfaces([]string{name})[0]
	if link == nil {
		return nil // the datapath waits for it
	}
	if a := d.attached[name]; a != nil {
		a.close()
		delete(d.attached, name)
	}
	d.lookUpInterfaces(d.table.Interfaces)
	if _, err := d.attachTo(name, link); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if !d.have.haveReplies() {
		return nil
	}
	return d.attachUndoTo(link)
}

// tcDifferences are the interfaces that lack the programs for replies.
func (d *Datapath) tcDifferences(by upkeep.By) (found []upkeep.Difference, err error) {
	if d.holds || !d.have.haveReplies() {
		return nil, nil
	}
	for _, link := range d.findInterfaces(d.table.Interfaces) {
		if link != nil && !undoHook.isOn(d.kernel.pin, link.Attrs().Name, link) {
			found = append(found, upkeep.Difference{What: link.Attrs().Name + " egress", Found: "has not the program that translates replies",
				By: by.OfLink(link.Attrs().Index), Repair: d.inDirectory(func() error { return d.attachUndoTo(link) })})
		}
	}
	for name, index := range d.takesReplies {
		link := device.ByName(name)
		if index == 0 || link == nil || link.Attrs().Index != index || takesNone(link) || replyHook.isOn(d.kernel.pin, name, link) {
			continue
		}
		found = append(found, upkeep.Difference{What: name + " ingress", Found: "has not the program that takes replies",
			By: by.OfLink(index), Repair: d.inDirectory(func() error { return d.takeReplies(name, true) })})
	}
	return found, nil
}

// pinDifferences are the pins that are gone. Their objects go on only while this process has them
// open: a director that ended now would forward nothing from then on.
func (d *Datapath) pinDifferences() (found []upkeep.Difference, err error) {
	if !d.kernel.published || !d.kernel.tidied {
		return nil, nil
	}
	if err := d.kernel.holdTables(); err != nil {
		return nil, err
	}
	for _, directory := range []struct {
		what   string
		pins   []string
		repair func() error
	}{
		{"maps", d.kernel.mapPins(), d.kernel.pinMapsAgain},
		{"programs", d.kernel.programPins(), d.kernel.pinProgramsAgain},
		{"state", d.kernel.statePins(), d.kernel.pinStateAgain},
	} {
		if gone := missing(directory.pins); gone > 0 {
			found = append(found, upkeep.Difference{What: directory.what, Found: fmt.Sprintf("%d of %d pins are gone", gone, len(directory.pins)),
				Repair: d.inDirectory(directory.repair)})
		}
	}
	for name, a := range d.attached {
		if pin := d.kernel.linkPin(name); missing([]string{pin}) > 0 && a.holds() {
			found = append(found, upkeep.Difference{What: filepath.Base(pin), Found: "is gone",
				Repair: d.inDirectory(func() error { return errors.Join(a.link.Unpin(), a.link.Pin(pin)) })})
		}
	}
	if len(found) == 0 && !d.kernel.locks() {
		found = append(found, upkeep.Difference{What: d.kernel.pin, Found: "is another directory than this process has locked", Repair: d.inDirectory(func() error { return nil })})
	}
	return found, nil
}

// inDirectory wraps a repair that works in the pin directory. If another director has taken the
// directory meanwhile, it is left alone: that director uses what is pinned there.
func (d *Datapath) inDirectory(repair func() error) func() error {
	return d.locked(func() error {
		if err := d.kernel.lockAgain(); err != nil {
			return err
		}
		return repair()
	})
}

func missing(pins []string) (count int) {
	for _, pin := range pins {
		if _, err := os.Lstat(pin); errors.Is(err, os.ErrNotExist) {
			count++
		}
	}
	return count
}

func pinsIn(directory string, names []string) []string {
	pins := make([]string, len(names))
	for i, name := range names {
		pins[i] = filepath.Join(directory, name)
	}
	return pins
}

func (k *kernel) mapPins() []string {
	names := make([]string, 0, len(k.all))
	for name := range k.all {
		names = append(names, pinName(name))
	}
	slices.Sort(names)
	return pinsIn(k.mapsDir(), names)
}

func (k *kernel) programPins() []string {
	names := slices.Clone(k.pins.programs)
	if k.build != "" {
		names = append(names, k.build)
	}
	return pinsIn(k.programsDir(), names)
}

func (k *kernel) statePins() []string {
	pins := pinsIn(k.statePin(""), []string{recordServices, recordBackends, recordDirector})
	for _, path := range k.state {
		pins = append(pins, path)
	}
	for _, h := range k.heldTables() {
		if h.held != nil {
			pins = append(pins, h.pin)
		}
	}
	return pins
}

// lockAgain makes the directory and locks it, if it is not the one that was locked: the old lock is
// of a directory that is gone, and would not keep a second director away.
func (k *kernel) lockAgain() error {
	if err := os.MkdirAll(k.pin, 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	if !k.locks() {
		lock, err := lockPins(k.pin)
		if err != nil {
			return err
		}
		k.lock.Close() // its directory is gone
		k.lock = lock
	}
	if err := os.MkdirAll(k.statePin(""), 0o700); err != nil {
		return fmt.Errorf("make pin directory: %w", err)
	}
	return nil
}

// ensureOwned sees to it that the pins that are there are this director's: if the directory is gone,
// it is made and locked again. After an error another director may have taken it meanwhile, whose
// links are on its interfaces: they must not be unpinned, nor get this one's programs.
func (k *kernel) ensureOwned() error {
	if k.locks() {
		return nil
	}
	return k.lockAgain()
}

// locks reports whether the directory that is there is the one that this process has locked.
func (k *kernel) locks() bool {
	now, err := os.Stat(k.pin)
	locked, other := k.lock.Stat()
	return err == nil && other == nil && os.SameFile(locked, now)
}

func (k *kernel) pinMapsAgain() error {
	if err := k.pinMaps(); err != nil {
		return err
	}
	return replaceDirectory(k.mapsDir())
}

func (k *kernel) pinProgramsAgain() error {
	if err := k.pinPrograms(); err != nil {
		return err
	}
	return replaceDirectory(k.programsDir())
}

func (k *kernel) pinStateAgain() error {
	errs := []error{k.records.pinAgain()}
	for name, path := range k.state {
		errs = append(errs, pinIfGone(k.all[name], path))
	}
	for _, h := range k.heldTables() {
		if h.held != nil {
			errs = append(errs, pinIfGone(h.held, h.pin))
		}
	}
	return errors.Join(errs...)
}

func pinIfGone(m *ebpf.Map, path string) error {
	if missing([]string{path}) == 0 {
		return nil
	}
	return pinClone(m, path)
}

// contentDifferences compares the maps by which packets find services, backends of replies, sources and
// the ways out, and the director's settings, with what they must have. Rings and backends are memory
// that this process shares with the programs; flows are the programs' own.
func (d *Datapath) contentDifferences() ([]upkeep.Difference, error) {
	found, err := d.compareContents()
	if err != nil {
		return nil, err
	}
	return d.withHands(found), nil
}

// Reading half a million entries takes seconds, in which no change may have to wait. So they are
// compared with a copy of what they must have. A change may have been made meanwhile: maps that differ
// are compared again, while none is made.
func (d *Datapath) compareContents() ([]upkeep.Difference, error) {
	repair := func(name string) error {
		return d.locked(func() error { return contents.Mend(d.keptMaps(itself), name) })()
	}
	if _, err := d.whileItRuns(d.unsettled)(); err != nil {
		return nil, err
	}
	copied := mapCopies{}
	defer copied.close()
	found, err := d.comparison.Look(func() []contents.Map { return d.copiedMaps(&copied) }, repair)
	if errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, upkeep.ErrUnknown // changes have taken away too much meanwhile: the next look tries again
	}
	if err = errors.Join(err, copied.err); err != nil || len(found) == 0 {
		return nil, err
	}
	return d.whileItRuns(func() ([]upkeep.Difference, error) {
		if _, err := d.unsettled(); err != nil {
			return nil, err
		}
		return d.comparison.Look(func() []contents.Map {
			return slices.DeleteFunc(d.keptMaps(itself), func(m contents.Map) bool {
				return !slices.ContainsFunc(found, func(f upkeep.Difference) bool { return f.What == m.What() })
			})
		}, repair)
	})()
}

// unsettled says why the maps cannot be compared yet: they may still have entries that this
// process has not put there, at first those of an earlier process.
func (d *Datapath) unsettled() ([]upkeep.Difference, error) {
	if d.whole && d.hasOnlyOwn() {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: the last change has not succeeded as a whole, or entries of an earlier process are still there", upkeep.ErrUnknown)
}

// copiedMaps copies what is to be compared; nil: nothing is. A map may be closed while it is read, so
// it is opened once more.
func (d *Datapath) copiedMaps(copied *mapCopies) (compared []contents.Map) {
	_, _ = d.whileItRuns(func() ([]upkeep.Difference, error) {
		if _, copied.err = d.unsettled(); copied.err == nil {
			compared = d.keptMaps(copied.open)
		}
		return nil, nil
	})()
	if copied.err != nil {
		return nil
	}
	return compared
}

// mapCopies are maps that were opened once more.
type mapCopies struct {
	maps []*ebpf.Map
	err  error
}

func (c *mapCopies) open(m *ebpf.Map) *ebpf.Map {
	again, err := m.Clone()
	c.err = errors.Join(c.err, err)
	if err == nil {
		c.maps = append(c.maps, again)
	}
	return again
}

func (c *mapCopies) close() {
	for _, m := range c.maps {
		m.Close()
	}
}

func itself(m *ebpf.Map) *ebpf.Map { return m }

// keptMaps are the maps with what must be in them, which is copied.
func (d *Datapath) keptMaps(open func(*ebpf.Map) *ebpf.Map) []contents.Map {
	k := d.kernel
	kept := []contents.Map{
		bothFamilies("services", open(k.Services4), open(k.Services6), d.have.services, endpoint.v4, endpoint.v6, endpoint.is4),
		bothFamilies("ranges", open(k.Ranges4), open(k.Ranges6), d.have.ranges, prefix.v4, prefix.v6, prefix.is4),
		bothFamilies("replies", open(k.Replies4), open(k.Replies6), d.have.replies, endpoint.v4, endpoint.v6, endpoint.is4),
		contents.Whole("ask_backends", open(k.AskBackends), maps.Clone(d.have.asked)),
		contents.Whole("backend_sources", open(k.BackendSources), d.refused.all()),
		contents.Whole("source_ranges", open(k.SourceRanges), d.sources.all()),
		contents.Within("peers", open(k.Peers), contents.Elements(d.wrote.peers)),
		contents.Within("group_slots", open(k.GroupSlots), contents.Elements(d.wrote.slots)),
		contents.Within("this_director", open(k.ThisDirector), map[uint32]abi.Settings{0: d.written}),
		contents.Whole("egress", open(k.Egress), d.keptEgress()),
	}
	// What this process has not written may be an earlier one's.
	if d.wrote.own != nil {
		kept = append(kept, contents.Whole("own_macs", open(k.OwnMacs), d.wrote.own))
	}
	if d.wrote.peerMACs != nil {
		kept = append(kept, contents.Whole("peer_macs", open(k.PeerMacs), d.wrote.peerMACs))
	}
	o := &d.overlay
	if o.wrote.networks != nil {
		kept = append(kept, contents.Whole(vtepMapVtepNetworks, open(o.maps.networks), o.wrote.networks))
	}
	if o.wrote.peers != nil {
		kept = append(kept, contents.Whole(vtepMapVtepPeers, open(o.maps.peers), o.wrote.peers))
	}
	if o.wrote.hosts != nil {
		kept = append(kept, contents.Whole(vtepMapVtepHosts, open(o.maps.hosts), o.wrote.hosts))
	}
	if o.wrote.own != nil {
		kept = append(kept, contents.Whole(vtepMapVtepOwnAddresses, open(o.maps.own), o.wrote.own))
	}
	return kept
}

// bothFamilies is what must be in the maps of IPv4 and of IPv6.
func bothFamilies[K, Four, Six comparable](name string, map4, map6 *ebpf.Map, want map[K]uint32, four func(K) Four, six func(K) Six, is4 func(K) bool) contents.Map {
	want4, want6 := map[Four]uint32{}, map[Six]uint32{}
	for key, index := range want {
		if is4(key) {
			want4[four(key)] = index
		} else {
			want6[six(key)] = index
		}
	}
	return contents.Both(contents.Whole(name, map4, want4), contents.Whole(name, map6, want6))
}
