package device

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sending says whether XDP can send by an interface packets that came in by another.
type Sending int

// The answers.
const (
	Unknown Sending = iota // a veth before Linux 6.3: its other end decides, which is out of sight
	Sends
	Lost // it cannot, and the kernel drops packets that are redirected there
)

// SendingOf asks the kernel, which can tell since Linux 6.3, or goes by the interface's kind. XDP
// cannot send packets with an Ethernet header by an interface whose packets have none, as tunnels'.
func SendingOf(link netlink.Link) Sending {
	if link.Attrs().EncapType != "ether" {
		return Lost
	}
	features, err := XDPFeatures(link.Attrs().Index)
	switch {
	case err != nil:
		return sendingOfKind(link)
	case features.Has(Transmit):
		return Sends
	}
	return Lost
}

// sendingKinds have ndo_xdp_xmit in Linux 6.1 (drivers/net/tun.c, drivers/net/bonding/bond_main.c),
// or are network cards, whose drivers mostly have it.
var sendingKinds = []string{"device", "tuntap", "bond"}

func sendingOfKind(link netlink.Link) Sending {
	if link.Type() == "veth" {
		return sendingOfVeth(link)
	}
	if slices.Contains(sendingKinds, link.Type()) {
		return Sends
	}
	return Lost
}

// sendingOfVeth looks at the other end, which accepts packets that XDP sends if it has GRO or a
// program of its own.
func sendingOfVeth(link netlink.Link) Sending {
	if link.Attrs().NetNsID >= 0 {
		return Unknown
	}
	peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil {
		return Unknown
	}
	if xdp := peer.Attrs().Xdp; xdp != nil && xdp.Attached {
		return Sends
	}
	gro, err := Ethtool(peer.Attrs().Name, unix.ETHTOOL_GGRO)
	switch {
	case err != nil:
		return Unknown
	case gro == 0:
		return Lost
	}
	return Sends
}

// PeerHasProgram says whether a veth's other end has an XDP program in its driver. Packets that XDP
// sends back by the veth by which they came (XDP_TX) wait for that: veth_xdp_flush in drivers/net/veth.c
// wakes only receivers with a program, GRO alone is not enough, and whatever comes next takes along those
// that wait. The kernel also tells of other network namespaces that it has given a number, but only
// processes that may administer them.
func PeerHasProgram(veth netlink.Link) (bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	peer := nl.NewIfInfomsg(unix.AF_UNSPEC)
	peer.Index = int32(veth.Attrs().ParentIndex)
	request.AddData(peer)
	if in := veth.Attrs().NetNsID; in >= 0 {
		request.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(in))))
	}
	replies, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return false, fmt.Errorf("ask for the other end of %s: %w", veth.Attrs().Name, err)
	}
	if len(replies) != 1 {
		return false, fmt.Errorf("ask for the other end of %s: %d answers", veth.Attrs().Name, len(replies))
	}
	link, err := netlink.LinkDeserialize(nil, replies[0])
	if err != nil {
		return false, fmt.Errorf("read the other end of %s: %w", veth.Attrs().Name, err)
	}
	xdp := link.Attrs().Xdp
	return xdp != nil && xdp.Attached && xdp.AttachMode != nl.XDP_ATTACHED_SKB, nil
}

// RunsInDriver says whether a program runs in an interface's driver, or would, as far as the
// kernel says.
func RunsInDriver(link netlink.Link) bool {
	if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
		return xdp.AttachMode != nl.XDP_ATTACHED_SKB
	}
	features, err := XDPFeatures(link.Attrs().Index)
	return err != nil || features.Has(Basic)
}
