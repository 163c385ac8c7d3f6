package program

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/bench/inside"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
)

// A bucket of full NAT's table has 16 places, which are searched in turn: a packet's cost depends
// on its flow's place, and the place on the table's own seed. Flows in the middle are measured, of
// each version.
const (
	places      = 16
	middle      = places / 2
	handshakes  = 1000 // more are not needed
	clientPorts = 10000
)

// handshake makes the packet's flow one that full NAT knows as a connection: it has seen the
// client's SYN, the backend's SYN-ACK, and the packet itself, which acknowledges that. It changes
// the client's port in both frames until the flow is in the middle of its bucket. The spec must
// contain the director, and the maps are those of the running one.
func handshake(spec *ebpf.CollectionSpec, maps inside.Maps, port *netlab.Port, syn, last []byte) error {
	for name := range spec.Programs {
		if name != director {
			delete(spec.Programs, name)
		}
	}
	collection, err := loadWith(spec, maps)
	if err != nil {
		return fmt.Errorf("load the director: %w", err)
	}
	defer collection.Close()
	p := program{collection.Programs[director]}
	for n := range uint16(handshakes) {
		setClientPort(syn, clientPorts+n)
		setClientPort(last, clientPorts+n)
		sent, err := p.run(port, 0, syn, 1)
		if err != nil {
			return fmt.Errorf("send the SYN: %w", err)
		}
		source := binary.BigEndian.Uint16(sent.frame[tcpOf(sent.frame):])
		if (source-model.DefaultSNATPorts.First)%places != middle {
			continue
		}
		// The client does not exist, so the kernel gets packets to it.
		if r, err := p.run(port, 0, synACK(sent.frame, syn, last), 1); err != nil && r.verdict != xdpPass {
			return fmt.Errorf("send the SYN-ACK: %w", err)
		}
		if _, err := p.run(port, 0, last, 1); err != nil {
			return fmt.Errorf("send the last step of the handshake: %w", err)
		}
		return nil
	}
	return fmt.Errorf("none of %d flows is in the middle of its bucket", handshakes)
}

const ethernetLength = 14

// tcpOf is where TCP's header is in a frame without tags and options.
func tcpOf(frame []byte) int {
	if frame[ethernetLength]>>4 == 6 {
		return ethernetLength + 40
	}
	return ethernetLength + 20
}

// setClientPort leaves the checksum as it is: it is not verified.
func setClientPort(frame []byte, port uint16) {
	binary.BigEndian.PutUint16(frame[tcpOf(frame):], port)
}

// synACK is a backend's answer to the SYN that it was sent, with the number that the client
// acknowledges in the last step. Its checksum is not verified.
func synACK(sent, syn, last []byte) []byte {
	address, size, tcp := ethernetLength+12, 4, tcpOf(sent)
	if sent[ethernetLength]>>4 == 6 {
		address, size = ethernetLength+8, 16
	}
	answer := slices.Clone(sent)
	copy(answer, syn[:12]) // the MAC addresses of arriving packets
	swap := func(at, size int) {
		copy(answer[at:], sent[at+size:at+2*size])
		copy(answer[at+size:], sent[at:at+size])
	}
	swap(address, size)
	swap(tcp, 2)
	number := func(of []byte, at int) uint32 { return binary.BigEndian.Uint32(of[tcp+at:]) }
	binary.BigEndian.PutUint32(answer[tcp+4:], number(last, 8)-1)
	binary.BigEndian.PutUint32(answer[tcp+8:], number(syn, 4)+1)
	answer[tcp+13] = 0x12 // SYN, ACK
	return answer
}
