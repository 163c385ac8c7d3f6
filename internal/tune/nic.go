package tune

import (
	"fmt"
	"net"

	"weir.io/weir/internal/device"
)

// Device tells an interface from another one that has its name.
type Device struct {
	Namespace uint64
	Index     int
	Address   string
}

func (d Device) identity() string { return fmt.Sprintf("%d"+inNamespace, d.Index, d.Namespace) }

// inNamespace ends the identity of an interface.
const inNamespace = " in net:[%d]"

// isElsewhere says whether an identity is one of an interface in another network namespace.
func (h *Host) isElsewhere(identity string) bool {
	var index int
	var namespace uint64
	if _, err := fmt.Sscanf(identity, "%d"+inNamespace, &index, &namespace); err != nil || h.Namespace == nil {
		return false
	}
	here, err := h.Namespace()
	return err == nil && namespace != here
}

// NIC is what ethtool says of an interface, and sets. What a driver does not have gives unix.EOPNOTSUPP or, for
// the indirection table, device.ErrNoRSS.
type NIC interface {
	// Device says which interface it is. An error names it: it is not there.
	Device() (Device, error)
	Driver() string // empty: the kernel does not say it
	// Running says whether the link has a carrier.
	Running() bool
	ReceiveQueues() (uint32, error)
	Channels() (now, most device.Channels, err error)
	SetChannels(device.Channels) error
	Rings() (now, most device.Rings, err error)
	SetRings(device.Rings) error
	Indirection() ([]uint32, error)
	SetIndirection(queues []uint32) error
	// ResetIndirection is for all queues in turn.
	ResetIndirection() error
	HashFields(packets uint32) (device.HashFields, error)
	SetHashFields(packets uint32, fields device.HashFields) error
}

// ethtool is an interface of the calling thread's network namespace.
type ethtool string

func newNIC(name string) NIC { return ethtool(name) }

func (e ethtool) Device() (Device, error) {
	link, err := net.InterfaceByName(string(e))
	if err != nil {
		return Device{}, fmt.Errorf("there is no interface %s", string(e))
	}
	namespace, err := device.NamespaceID()
	return Device{namespace, link.Index, link.HardwareAddr.String()}, err
}

func (e ethtool) Driver() string { return device.DriverOf(string(e)) }

func (e ethtool) Running() bool { return device.HasCarrier(string(e)) }

func (e ethtool) ReceiveQueues() (uint32, error) { return device.ReceiveQueues(string(e)) }

func (e ethtool) Channels() (now, most device.Channels, err error) {
	return device.ChannelsOf(string(e))
}

func (e ethtool) SetChannels(want device.Channels) error { return device.SetChannels(string(e), want) }

func (e ethtool) Rings() (now, most device.Rings, err error) { return device.RingsOf(string(e)) }

func (e ethtool) SetRings(want device.Rings) error { return device.SetRings(string(e), want) }

func (e ethtool) Indirection() ([]uint32, error) { return device.Indirection(string(e)) }

func (e ethtool) SetIndirection(queues []uint32) error {
	return device.SetIndirection(string(e), queues)
}

func (e ethtool) ResetIndirection() error { return device.ResetIndirection(string(e)) }

func (e ethtool) HashFields(packets uint32) (device.HashFields, error) {
	return device.HashFieldsOf(string(e), packets)
}

func (e ethtool) SetHashFields(packets uint32, fields device.HashFields) error {
	return device.SetHashFields(string(e), packets, fields)
}
