package model

import (
	"fmt"
	"strconv"
)

// FanOut says to how many other CPUs the CPUs of a NIC's receive queues give packets of expensive services. It
// is written as auto or a number. The zero value is none.
type FanOut struct {
	Auto bool
	CPUs uint16
}

// MaxFanOut is more CPUs than a host is likely to have.
const MaxFanOut = 1024

// Given reports whether packets may be given to other CPUs.
func (f FanOut) Given() bool { return f != FanOut{} }

// String returns "auto" or the number.
func (f FanOut) String() string {
	if f.Auto {
		return "auto"
	}
	return strconv.Itoa(int(f.CPUs))
}

// MarshalText writes what String returns.
func (f FanOut) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what String returns.
func (f *FanOut) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*f = FanOut{Auto: true}
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 16)
	if err != nil || n > MaxFanOut {
		return fmt.Errorf("%q is neither auto nor a number of CPUs from 0 to %d", text, MaxFanOut)
	}
	*f = FanOut{CPUs: uint16(n)}
	return nil
}

// FanOutStatus is which CPUs get packets from the CPUs of receive queues.
type FanOutStatus struct {
	CPUs    []uint32 `json:"cpus"`
	Given   uint64   `json:"given"`   // packets, since the maps were made
	Taken   uint64   `json:"taken"`   // of these, that the other CPUs have handled
	Dropped uint64   `json:"dropped"` // of these, for which there was no room, at least
}
