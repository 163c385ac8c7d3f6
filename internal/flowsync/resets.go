package flowsync

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

const (
	resetsIPv6   = 1 << 0
	resetsFixed  = 14   // before the address
	resetsAtOnce = 1024 // services in a frame: at most 30,720 bytes
)

// frameOfResets puts counts into a frame, those of the services with the most.
func frameOfResets(list []model.ServiceResets) []byte {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b model.ServiceResets) int { return cmp.Compare(b.Flows, a.Flows) })
	f := frame(frameResets)
	for _, r := range list[:min(len(list), resetsAtOnce)] {
		f = appendResets(f, r)
	}
	return finish(f)
}

func appendResets(b []byte, r model.ServiceResets) []byte {
	var flags uint8
	if r.Service.VIP.Is6() {
		flags |= resetsIPv6
	}
	b = append(b, flags, uint8(r.Service.Protocol))
	b = binary.BigEndian.AppendUint32(b, r.Service.Segment.Key())
	b = binary.BigEndian.AppendUint16(b, r.Service.Port.First)
	b = binary.BigEndian.AppendUint16(b, r.Service.Port.Last)
	b = binary.BigEndian.AppendUint32(b, r.Flows)
	return append(b, r.Service.VIP.AsSlice()...)
}

// readResets reads what follows the kind in a frame.
func readResets(b []byte) (list []model.ServiceResets, err error) {
	for len(b) > 0 {
		var r model.ServiceResets
		if r, b, err = readReset(b); err != nil {
			return nil, err
		}
		if list = append(list, r); len(list) > resetsAtOnce {
			return nil, fmt.Errorf("counts of more than %d services", resetsAtOnce)
		}
	}
	return list, nil
}

func readReset(b []byte) (r model.ServiceResets, rest []byte, err error) {
	if len(b) < resetsFixed {
		return r, nil, errors.New("a count of resets is cut short")
	}
	flags := b[0]
	r = model.ServiceResets{
		Service: model.ServiceID{
			Segment: model.SegmentOf(binary.BigEndian.Uint32(b[2:])), Protocol: model.Protocol(b[1]),
			Port: model.PortRange{First: binary.BigEndian.Uint16(b[6:]), Last: binary.BigEndian.Uint16(b[8:])},
		},
		Flows: binary.BigEndian.Uint32(b[10:]),
	}
	if r.Service.VIP, rest, err = readAddress(b[resetsFixed:], flags&resetsIPv6 != 0); err != nil {
		return r, nil, errors.New("a count of resets is cut short")
	}
	switch {
	case flags&^resetsIPv6 != 0:
		err = fmt.Errorf("a count of resets has the flags %#x", flags)
	case r.Service.Protocol != model.TCP:
		err = fmt.Errorf("a count of resets is of protocol %d", uint8(r.Service.Protocol))
	default:
		err = checkService(&r.Service)
	}
	return r, rest, err
}
