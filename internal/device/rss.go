package device

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RSS (receive side scaling) spreads packets without a rule over receive queues, by an indirection
// table: the lower bits of a packet's hash choose an entry, and that names a queue.

const (
	getIndirection = 0x38 // ETHTOOL_GRXFHINDIR
	setIndirection = 0x39 // ETHTOOL_SRXFHINDIR
)

// ErrNoRSS says that a driver has no indirection table.
var ErrNoRSS = errors.New("the driver has no indirection table for RSS")

// Indirection returns an interface's indirection table: queues.
func Indirection(name string) ([]uint32, error) {
	size := [2]uint32{getIndirection} // struct ethtool_rxfh_indir
	if err := ethtool(name, unsafe.Pointer(&size)); err != nil {
		return nil, rssError(name, "read the size of the indirection table", err)
	}
	table := make([]uint32, 2+size[1])
	table[0], table[1] = getIndirection, size[1]
	if err := ethtool(name, unsafe.Pointer(&table[0])); err != nil {
		return nil, rssError(name, "read the indirection table", err)
	}
	return table[2:], nil
}

// SetIndirection writes an interface's indirection table.
func SetIndirection(name string, queues []uint32) error {
	table := append([]uint32{setIndirection, uint32(len(queues))}, queues...)
	if err := ethtool(name, unsafe.Pointer(&table[0])); err != nil {
		return rssError(name, "write the indirection table", err)
	}
	return nil
}

// ResetIndirection writes the table that the kernel makes by itself: all receive queues in turn. Then the
// table also follows later changes of the number of queues.
func ResetIndirection(name string) error {
	reset := [2]uint32{setIndirection} // a size of 0 means it
	if err := ethtool(name, unsafe.Pointer(&reset)); err != nil {
		return rssError(name, "reset the indirection table", err)
	}
	return nil
}

// KeepRSSOff makes RSS use none of some queues. It changes nothing if that is so already.
func KeepRSSOff(name string, queues []uint32) error {
	table, err := Indirection(name)
	if err != nil {
		return err
	}
	next, err := without(table, queues)
	if err != nil || slices.Equal(next, table) {
		return err
	}
	return SetIndirection(name, next)
}

// without replaces queues in an indirection table by its other ones, in turn.
func without(table, queues []uint32) ([]uint32, error) {
	var stay []uint32
	for _, q := range table {
		if !slices.Contains(queues, q) && !slices.Contains(stay, q) {
			stay = append(stay, q)
		}
	}
	if len(stay) == 0 && len(table) > 0 {
		return nil, fmt.Errorf("RSS would have no queue left without %v", queues)
	}
	next, replaced := slices.Clone(table), 0
	for i, q := range next {
		if slices.Contains(queues, q) {
			next[i] = stay[replaced%len(stay)]
			replaced++
		}
	}
	return next, nil
}

func rssError(name, what string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoRSS
	}
	return fmt.Errorf("%s: %s: %w", name, what, err)
}
