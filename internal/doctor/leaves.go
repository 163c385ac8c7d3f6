package doctor

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"weir.io/weir/internal/device"
)

const peerFix = "ethtool -K PEER gro on, at its other end"

// leaves checks that what the director sends gets out of an interface: by XDP, or if XDP cannot
// send, by the kernel, which does not send frames as they are. framed are the backends behind it
// that get such frames.
func (x *examination) leaves(link netlink.Link, framed *backendNames) {
	unsure := framed != nil && x.sending.Sending(link) == device.Unknown
	switch {
	case x.byKernel(link) && !unsure:
		x.kernelSends(link, framed)
	case link.Type() == "veth":
		x.peerReceives(link)
	}
}

// byKernel says whether the kernel sends by an interface what XDP cannot.
func (x *examination) byKernel(link netlink.Link) bool {
	return x.sending.ByKernel(link, x.config.Director.Interfaces)
}

// kernelSends says what that means for the backends behind it.
func (x *examination) kernelSends(link netlink.Link, framed *backendNames) {
	name, what, fix := link.Attrs().Name, link.Type(), "lead the routes to backends by an interface of director.interfaces, or use nat, ipip or gue without mac and vlan"
	check := "egress " + name
	if link.Type() == "veth" {
		check, fix = "peer "+name, peerFix
		what = "a veth whose other end has neither an XDP program nor GRO"
		if x.sending.Sending(link) == device.Unknown {
			what = "a veth whose other end is in another namespace"
		}
	}
	if framed != nil {
		x.known(check, fix, "XDP cannot send into it (%s), and the kernel sends no frames as they are: "+
			"backend %s, by l2dsr or with a configured mac or vlan, gets nothing, though it counts as forwarded", what, framed)
		return
	}
	x.ok(check, "XDP cannot send into it (%s): the kernel sends what is forwarded there, which takes longer", what)
}

// peerReceives checks that a veth's other end takes what XDP sends: it does with its own program or
// with GRO, and else loses it without counting.
func (x *examination) peerReceives(link netlink.Link) {
	name := link.Attrs().Name
	check := "peer " + name
	if !x.sending.InDriver(x.config.Director.Interfaces...) {
		x.ok(check, "its other end takes what generic XDP sends")
		return
	}
	switch x.sending.Sending(link) {
	case device.Sends:
		x.ok(check, "its other end takes what XDP sends")
	case device.Unknown:
		x.warn(check, peerFix, "is a veth whose other end is in another namespace: "+
			"without an XDP program or GRO there, what is forwarded to it is lost, though it counts as forwarded")
	default:
		x.fail(check, peerFix, "is a veth whose other end has neither an XDP program nor GRO: "+
			"what is forwarded to it is lost, though it counts as forwarded")
	}
}

// returns checks that what XDP sends back by a veth of the director's gets to its other end at once. All
// says that clients' packets come in by it alone, and that it leads to backends.
//
// Mode auto does not take generic XDP there. Whether the other end has a program changes while the
// director runs, without a notice where it is in another namespace, and the mode of an interface cannot
// change without a moment in which no program handles its packets. And a program at the other end is
// what one wants there: generic XDP copies every packet.
func (x *examination) returns(link netlink.Link, all bool) {
	if link.Type() != "veth" || !x.sending.InDriver(link.Attrs().Name) {
		return
	}
	name := link.Attrs().Name
	check := "returns " + name
	has, err := device.PeerHasProgram(link)
	say, what := x.warn, "answers to pings and \"too big\", and packets for backends behind it,"
	if all {
		say, what = x.fail, "forwarded packets"
	}
	switch {
	case err != nil:
		x.warn(check, fmt.Sprintf("look in the namespace of the other end: ip -details link | grep -A3 ^%d: has to say prog/xdp; if it does not, %s", link.Attrs().ParentIndex, returnsFix),
			"is a veth whose other end cannot be seen from here (%v): without an XDP program there, %s come late", err, what)
	case has:
		x.ok(check, "its other end has an XDP program, and gets at once what XDP sends back")
	default:
		say(check, returnsFix, "is a veth whose other end has no XDP program in its driver: %s come late, several at once, when something else wakes it", what)
	}
}

const returnsFix = "director.xdp: generic, or any XDP program at the other end (GRO there is not enough)"
