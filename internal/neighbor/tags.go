package neighbor

import (
	"encoding/binary"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values in frames with tags (IEEE 802.1Q, linux/if_ether.h).
const (
	typeAt              = 12 // where a frame has its EtherType, or its first tag
	tagLength           = 4
	vlanID              = 0xfff // of a tag's TCI; the other bits are a priority
	etherTypeTag        = 0x8100
	etherTypeServiceTag = 0x88a8 // the outer tag of two (802.1ad); some networks have 0x8100 there, too
)

// tagTypes are the EtherTypes of a frame's tags, the outer one first.
type tagTypes [2]uint16

// usual returns the types of so many tags.
func usual(tags int) *tagTypes {
	if tags > 1 {
		return &tagTypes{etherTypeServiceTag, etherTypeTag}
	}
	return &tagTypes{etherTypeTag}
}

// tagged returns a frame with tags.
func tagged(frame []byte, tags []uint16, types *tagTypes) []byte {
	if len(tags) == 0 {
		return frame
	}
	with := make([]byte, 0, len(frame)+len(tags)*tagLength)
	with = append(with, frame[:typeAt]...)
	for i, id := range tags {
		with = binary.BigEndian.AppendUint16(with, types[i])
		with = binary.BigEndian.AppendUint16(with, id)
	}
	return append(with, frame[typeAt:]...)
}

// untagged returns a frame without the inner tag, which frames with two have after the kernel has put
// the outer one aside, and the type of that tag. It writes over the frame.
func untagged(frame []byte, tags int) (rest []byte, inner uint16) {
	if tags < 2 || len(frame) < ethernetLength+tagLength {
		return frame, 0
	}
	inner = binary.BigEndian.Uint16(frame[typeAt:])
	copy(frame[tagLength:], frame[:typeAt])
	return frame[tagLength:], inner
}

// readTagged reads a frame, and the type of the tag that the kernel keeps aside.
func readTagged(socket *os.File, frame, aside []byte) (n int, outer uint16, err error) {
	conn, err := socket.SyscallConn()
	if err != nil {
		return 0, 0, fs.ErrClosed
	}
	var length int
	if ended := conn.Read(func(fd uintptr) (done bool) {
		n, length, _, _, err = unix.Recvmsg(int(fd), frame, aside, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	}); ended != nil {
		return 0, 0, fs.ErrClosed // without a deadline nothing else ends the wait
	}
	if err != nil {
		return 0, 0, err
	}
	for rest := aside[:length]; len(rest) >= unix.SizeofCmsghdr; {
		header, data, left, parseErr := unix.ParseOneSocketControlMessage(rest)
		if parseErr != nil {
			break
		}
		if header.Level == unix.SOL_PACKET && header.Type == unix.PACKET_AUXDATA && len(data) >= int(unsafe.Sizeof(unix.TpacketAuxdata{})) {
			if about := (*unix.TpacketAuxdata)(unsafe.Pointer(&data[0])); about.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
				outer = about.Vlan_tpid
			}
		}
		rest = left
	}
	return n, outer, nil
}
