package twin

import (
	"encoding/binary"
	"net/netip"
)

// Numbers of the redirect option (bpf/lib/redirect_option.h), and of options that rule it out (IANA,
// TCP parameters).
const (
	optionEnd, optionNOP, optionMSS = 0, 1, 2
	optionMD5, optionAO             = 19, 29
	optionMPTCP, optionFastOpen     = 30, 34
	experiment1, experiment2        = 253, 254
	redirectExID, fastOpenExID      = 0x5752, 0xf989

	redirectLength = 10
	redirectBytes  = 12 // with two NOPs
	optionsMax     = 40
)

// Redirect is what the options of a TCP header say about redirection.
type Redirect struct {
	At   int     // offset of the option; -1: there is none that counts
	VIP  [4]byte // last bytes of the VIP; zero with Port 0: to be filled in
	Port uint16
	Room bool // there is room to add the option behind the others, here and in the answer
}

// Asks says whether a SYN with these options wants to be redirected.
func (r Redirect) Asks() bool { return r.At >= 0 && r.VIP == [4]byte{} && r.Port == 0 }

// ReadRedirect reads the options of a TCP header.
func ReadRedirect(options []byte) Redirect {
	r := Redirect{At: -1}
	counts, mss, ended := true, false, false
	for rest := options; len(rest) > 0 && !ended; {
		kind := rest[0]
		if kind == optionEnd || kind == optionNOP {
			ended, rest = kind == optionEnd, rest[1:]
			continue
		}
		if len(rest) < 2 || rest[1] < 2 || int(rest[1]) > len(rest) {
			counts = false
			break
		}
		at, option := len(options)-len(rest), rest[:rest[1]]
		rest = rest[rest[1]:]
		switch kind {
		case optionMSS:
			mss = true
		case optionMD5, optionAO, optionMPTCP, optionFastOpen:
			counts = false
		case experiment1, experiment2:
			if len(option) < 4 {
				continue
			}
			switch exid := binary.BigEndian.Uint16(option[2:]); {
			case exid == fastOpenExID:
				counts = false
			case exid != redirectExID || kind == experiment1:
			case len(option) != redirectLength || at%2 == 1 || r.At >= 0:
				counts = false
			default:
				r.At, r.VIP, r.Port = at, [4]byte(option[4:]), binary.BigEndian.Uint16(option[8:])
			}
		}
	}
	answer := len(options) + redirectBytes
	if !mss {
		answer += 4 // the answer has one
	}
	r.Room = counts && !ended && r.At < 0 && answer <= optionsMax
	if !counts {
		r.At, r.VIP, r.Port = -1, [4]byte{}, 0
	}
	return r
}

// AppendRedirect adds the option for a VIP, or one to be filled in if there is none.
func AppendRedirect(options []byte, vip netip.AddrPort) []byte {
	var tail [4]byte
	if a := vip.Addr(); a.IsValid() {
		tail = [4]byte(a.AsSlice()[a.BitLen()/8-4:])
	}
	options = append(options, experiment2, redirectLength, redirectExID>>8, redirectExID&0xff)
	options = append(options, tail[:]...)
	return append(binary.BigEndian.AppendUint16(options, vip.Port()), optionNOP, optionNOP)
}
