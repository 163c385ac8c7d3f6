package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rules of a NIC's flow table (ntuple filters): packets of a flow come to a receive queue. They are read
// and written by the ioctl SIOCETHTOOL, as "ethtool -N" does. What the NIC says it has counts: some
// drivers accept a rule that they do not have, and the tool's exit status does not say so.

// Rule leads a flow's packets to a receive queue.
type Rule struct {
	Flow     RuleFlow
	Queue    uint32
	Location uint32 // its number in the NIC
}

// RuleFlow is what the packets of a rule have: TCP or UDP, and both addresses and ports.
type RuleFlow struct {
	Protocol            uint8 // IANA's number
	Source, Destination netip.AddrPort
}

// String is the flow in words, for errors.
func (f RuleFlow) String() string {
	name := fmt.Sprintf("protocol %d", f.Protocol)
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		name = "TCP"
	case unix.IPPROTO_UDP:
		name = "UDP"
	}
	return fmt.Sprintf("%s from %v to %v", name, f.Source, f.Destination)
}

// RuleTable says what a NIC's flow table is.
type RuleTable struct {
	Size      int      // rules that fit
	Locations []uint32 // where there are rules, of all users
	// Chooses says that the driver chooses where a rule lies.
	Chooses bool
}

// enums of linux/ethtool.h.
const (
	getRings      = 0x2d // ETHTOOL_GRXRINGS
	getRuleCount  = 0x2e // ETHTOOL_GRXCLSRLCNT
	getRule       = 0x2f // ETHTOOL_GRXCLSRULE
	getRules      = 0x30 // ETHTOOL_GRXCLSRLALL
	deleteRule    = 0x31 // ETHTOOL_SRXCLSRLDEL
	insertRule    = 0x32 // ETHTOOL_SRXCLSRLINS
	locationAny   = 0xffffffff
	locationsAre  = 0x80000000 // RX_CLS_LOC_SPECIAL: the driver chooses locations
	flowExtension = 0x80000000 // FLOW_EXT, FLOW_MAC_EXT: the rule has more than the flow
	flowMACs      = 0x40000000
)

// flowTypes are TCP_V4_FLOW, UDP_V4_FLOW, TCP_V6_FLOW and UDP_V6_FLOW.
var flowTypes = map[uint32]struct {
	protocol uint8
	ipv6     bool
}{0x01: {unix.IPPROTO_TCP, false}, 0x02: {unix.IPPROTO_UDP, false}, 0x05: {unix.IPPROTO_TCP, true}, 0x06: {unix.IPPROTO_UDP, true}}

func (f RuleFlow) kind() (uint32, error) {
	for kind, is := range flowTypes {
		if is.protocol == f.Protocol && is.ipv6 == f.Source.Addr().Is6() && is.ipv6 == f.Destination.Addr().Is6() {
			return kind, nil
		}
	}
	return 0, fmt.Errorf("a rule cannot be for %v", f)
}

// flowSpec is struct ethtool_rx_flow_spec.
type flowSpec struct {
	kind          uint32
	flow          [52]byte // union ethtool_flow_union
	extension     [20]byte // struct ethtool_flow_ext
	flowMask      [52]byte
	extensionMask [20]byte
	_             uint32
	queue         uint64 // ring_cookie; above 32 bits: a virtual function's
	location      uint32
	_             uint32
}

// ruleRequest is struct ethtool_rxnfc, with room for no locations.
type ruleRequest struct {
	command uint32
	kind    uint32
	data    uint64
	spec    flowSpec
	count   uint32
	_       uint32
}

// bytesOf returns the values of a flow and which of their bits count: struct ethtool_tcpip4_spec or
// ethtool_tcpip6_spec.
func (f RuleFlow) bytesOf() (flow, mask [52]byte) {
	values := append(f.Source.Addr().AsSlice(), f.Destination.Addr().AsSlice()...)
	values = binary.BigEndian.AppendUint16(values, f.Source.Port())
	values = binary.BigEndian.AppendUint16(values, f.Destination.Port())
	copy(flow[:], values)
	for i := range values {
		mask[i] = 0xff
	}
	return flow, mask
}

// flowOf reads a rule; false: it is for other packets than those of one flow.
func (s *flowSpec) flowOf() (f RuleFlow, whole bool) {
	kind, known := flowTypes[s.kind&^(flowExtension|flowMACs)]
	if !known || s.extensionMask != [20]byte{} {
		return f, false
	}
	length := 4
	if kind.ipv6 {
		length = 16
	}
	address := func(at int) netip.Addr { a, _ := netip.AddrFromSlice(s.flow[at : at+length]); return a }
	port := func(at int) uint16 { return binary.BigEndian.Uint16(s.flow[2*length+at:]) }
	f = RuleFlow{kind.protocol, netip.AddrPortFrom(address(0), port(0)), netip.AddrPortFrom(address(length), port(2))}
	_, mask := f.bytesOf()
	return f, s.flowMask == mask
}

// ReceiveQueues returns how many receive queues an interface has.
func ReceiveQueues(name string) (uint32, error) {
	request := ruleRequest{command: getRings}
	if err := ethtool(name, unsafe.Pointer(&request)); err != nil {
		return 0, ruleError(name, "read the number of receive queues", err)
	}
	return uint32(request.data), nil
}

// RulesOf returns what a NIC's flow table is, if it is on. Drivers say its size with the number of rules, or
// (mlx5, macb) with their locations.
func RulesOf(name string) (RuleTable, error) {
	if err := isOn(name); err != nil {
		return RuleTable{}, ruleError(name, "read the flow table", err)
	}
	count := ruleRequest{command: getRuleCount}
	if err := ethtool(name, unsafe.Pointer(&count)); err != nil {
		return RuleTable{}, ruleError(name, "read the flow table", err)
	}
	// struct ethtool_rxnfc, which ends in the locations. Others may add rules meanwhile.
	room := int(count.count) + 64
	buffer := make([]uint64, (int(unsafe.Sizeof(ruleRequest{}))+4*room)/8+1)
	all := (*ruleRequest)(unsafe.Pointer(&buffer[0]))
	all.command, all.count = getRules, uint32(room)
	if err := ethtool(name, unsafe.Pointer(all)); err != nil {
		return RuleTable{}, ruleError(name, "list the rules", err)
	}
	// The locations follow the count without a gap.
	locations := unsafe.Slice((*uint32)(unsafe.Add(unsafe.Pointer(&all.count), 4)), room)
	return RuleTable{
		Size:      int(max(uint32(count.data)&^locationsAre, uint32(all.data)&^locationsAre)),
		Locations: slices.Clone(locations[:min(int(all.count), room)]),
		Chooses:   count.data&locationsAre != 0,
	}, nil
}

// RuleAt returns the rule that lies somewhere; false: it is not for the packets of one flow. The error is
// ErrNoRule if there is none.
func RuleAt(name string, location uint32) (r Rule, single bool, err error) {
	request := ruleRequest{command: getRule, spec: flowSpec{location: location}}
	err = ethtool(name, unsafe.Pointer(&request))
	// Drivers say differently that there is no rule: EINVAL is macb's, igb's, i40e's.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		err = ErrNoRule
	}
	if err != nil {
		return r, false, ruleError(name, fmt.Sprintf("read rule %d", location), err)
	}
	f, single := request.spec.flowOf()
	return Rule{f, uint32(request.spec.queue), location}, single && request.spec.queue <= 1<<32-1, nil
}

// InsertRule adds a rule, at its location unless the driver chooses, and returns where it lies now. A driver
// may take a rule that its NIC cannot have (macb takes those for IPv6), and list it: then it leads no packets.
func InsertRule(name string, r Rule, chooses bool) (location uint32, err error) {
	request := ruleRequest{command: insertRule}
	if request.spec.kind, err = r.Flow.kind(); err != nil {
		return 0, err
	}
	request.spec.flow, request.spec.flowMask = r.Flow.bytesOf()
	request.spec.queue, request.spec.location = uint64(r.Queue), r.Location
	if chooses {
		request.spec.location = locationAny
	}
	err = isOn(name)
	if err == nil {
		err = ethtool(name, unsafe.Pointer(&request))
	}
	if errors.Is(err, unix.EINVAL) {
		err = beyond(name, r, chooses, err)
	}
	if err != nil {
		where := ""
		if !chooses {
			where = fmt.Sprintf(" %d", r.Location)
		}
		return 0, ruleError(name, fmt.Sprintf("insert rule%s for %v to queue %d", where, r.Flow, r.Queue), err)
	}
	return request.spec.location, nil
}

// beyond says which number of a rule is more than the NIC has, if one is. Drivers say only EINVAL.
func beyond(name string, r Rule, chooses bool, err error) error {
	if queues, queuesErr := ReceiveQueues(name); queuesErr == nil && r.Queue >= queues {
		return fmt.Errorf("there are %d receive queues: %w", queues, err)
	}
	if table, tableErr := RulesOf(name); tableErr == nil && !chooses && int(r.Location) >= table.Size {
		return fmt.Errorf("there is room for %d rules: %w", table.Size, err)
	}
	return err
}

// isOn is an error if the flow table is off and can be switched on. Without the feature, or if it cannot be
// changed, a driver may have rules all the same, and says so itself.
func isOn(name string) error {
	on, changes, err := ntuple(name)
	if err == nil && !on && changes {
		return fmt.Errorf("%w (ethtool -K %s ntuple on)", ErrRulesOff, name)
	}
	return err
}

// DeleteRule takes a rule out.
func DeleteRule(name string, location uint32) error {
	request := ruleRequest{command: deleteRule, spec: flowSpec{location: location}}
	if err := ethtool(name, unsafe.Pointer(&request)); err != nil {
		return ruleError(name, fmt.Sprintf("delete rule %d", location), err)
	}
	return nil
}

// ErrNoRule says that no rule lies there, or that the driver does not show it.
var ErrNoRule = errors.New("there is no rule")

// ErrNoRules says that a driver has no rules for flows.
var ErrNoRules = errors.New("the driver has no flow table (ntuple filters) for this NIC, or not for such packets")

// ErrGone says that there is no such interface any more.
var ErrGone = error(unix.ENODEV)

// ruleError names the interface and its driver.
func ruleError(name, what string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoRules
	}
	if driver := DriverOf(name); driver != "" {
		name += " (" + driver + ")"
	}
	return fmt.Errorf("%s: %s: %w", name, what, err)
}
