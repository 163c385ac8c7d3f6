package program

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"weir.io/weir/internal/netlab"
)

// handshake makes the packet's flow one that full NAT knows as a connection: it has seen the
// client's SYN, the backend's SYN-ACK, and the packet itself, which acknowledges that. The spec is
// one that has the director in it, and the maps are those of the one that runs.
func handshake(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map, port *netlab.Port, syn, last []byte) error {
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
	sent, err := p.run(port, syn, 1)
	if err != nil {
		return fmt.Errorf("send the SYN: %w", err)
	}
	// The client does not exist, so the kernel gets what is for it.
	if _, err := p.run(port, synACK(sent.frame, syn, last), 1); err != nil && !errors.Is(err, errNotForwarded) {
		return fmt.Errorf("send the SYN-ACK: %w", err)
	}
	if _, err := p.run(port, last, 1); err != nil {
		return fmt.Errorf("send the last step of the handshake: %w", err)
	}
	return nil
}

// synACK is how a backend answers the SYN as it was sent to it, with the number that the client
// acknowledges in the last step. Nothing looks at its checksum.
func synACK(sent, syn, last []byte) []byte {
	const ethernet = 14
	address, size, tcp := ethernet+12, 4, ethernet+20
	if sent[ethernet]>>4 == 6 {
		address, size, tcp = ethernet+8, 16, ethernet+40
	}
	answer := slices.Clone(sent)
	copy(answer, syn[:12]) // the MAC addresses of what arrives
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
