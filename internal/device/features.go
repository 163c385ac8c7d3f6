// Package device asks what network interfaces can do, and sets it: by ethtool, and by what
// the kernel says of XDP.
package device

import (
	"encoding/binary"
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Features are what XDP can do with an interface: bits of enum netdev_xdp_act
// (linux/netdev.h).
type Features uint64

// The features that matter here.
const (
	Basic         Features = 1 << 0 // programs run in the driver
	Transmit      Features = 1 << 2 // NDO_XMIT: what is redirected to it is sent
	ScatterGather Features = 1 << 5 // RX_SG: packets may be longer than a page
)

// Has says whether all of these are there.
func (f Features) Has(these Features) bool { return f&these == these }

// genericHeader is struct genlmsghdr (linux/genetlink.h) with its reserved bytes:
// the kernel refuses a request where they are not zero, and nl.Genlmsg leaves
// them to chance.
type genericHeader [nl.SizeofGenlmsg]byte

// Len implements nl.NetlinkRequestData.
func (h *genericHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h *genericHeader) Serialize() []byte { return h[:] }

// XDPFeatures asks for NETDEV_A_DEV_XDP_FEATURES, which Linux 6.3 and newer has.
func XDPFeatures(index int) (Features, error) {
	const (
		commandDevGet = 1 // NETDEV_CMD_DEV_GET
		attrIndex     = 1 // NETDEV_A_DEV_IFINDEX
		attrFeatures  = 3 // NETDEV_A_DEV_XDP_FEATURES
	)
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, err
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(&genericHeader{commandDevGet, 1, 0, 0})
	request.AddData(nl.NewRtAttr(attrIndex, nl.Uint32Attr(uint32(index))))
	replies, err := request.Execute(16, 0) // NETLINK_GENERIC
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		attrs, err := nl.ParseRouteAttr(reply[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == attrFeatures && len(a.Value) == 8 {
				return Features(binary.NativeEndian.Uint64(a.Value)), nil
			}
		}
	}
	return 0, errors.New("no features in the answer")
}
