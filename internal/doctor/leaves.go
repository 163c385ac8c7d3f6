package doctor

import (
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
