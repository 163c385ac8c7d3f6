package device

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// commands, sets of strings and flags of linux/ethtool.h.
const (
	getDriver      = 0x03    // ETHTOOL_GDRVINFO
	getStrings     = 0x1b    // ETHTOOL_GSTRINGS
	getFlags       = 0x25    // ETHTOOL_GFLAGS
	setFlags       = 0x26    // ETHTOOL_SFLAGS
	getSetInfo     = 0x37    // ETHTOOL_GSSET_INFO
	getFeatures    = 0x3a    // ETHTOOL_GFEATURES
	featureStrings = 4       // ETH_SS_FEATURES
	stringLength   = 32      // ETH_GSTRING_LEN
	flagNtuple     = 1 << 27 // ETH_FLAG_NTUPLE
	featureWords   = 8       // more than there are: the kernel says how many
	ntupleFilters  = "rx-ntuple-filter"
)

// ErrRulesOff says that a NIC's flow table is switched off. A driver may accept rules meanwhile, list them,
// and not tell the NIC of them (macb).
var ErrRulesOff = errors.New("the flow table (ntuple filters) is switched off")

// CanSteer says why a NIC leads no packets to receive queues by rules; nil: as far as its driver says, it does.
func CanSteer(name string) error {
	table, err := RulesOf(name)
	if err != nil {
		return err
	}
	on, _, err := ntuple(name)
	if err == nil && (!on || table.Size == 0) {
		// A driver may say how many rules there is room for, and take none (igb, of a NIC without them).
		err = ErrNoRules
	}
	if err != nil {
		return ruleError(name, "steer flows", err)
	}
	return nil
}

// SwitchRulesOn switches a NIC's flow table on, as "ethtool -K NAME ntuple on" does. It changes nothing if it
// is on. Of rules that there are a driver may tell the NIC only with the next one (macb).
func SwitchRulesOn(name string) error {
	const what = "switch the flow table on"
	flags, err := Ethtool(name, getFlags)
	if err != nil {
		return ruleError(name, what, err)
	}
	if flags&flagNtuple != 0 {
		return nil
	}
	if err := SetEthtool(name, setFlags, flags|flagNtuple); err != nil {
		return ruleError(name, what, err)
	}
	// A driver may refuse it without an error.
	if flags, err = Ethtool(name, getFlags); err == nil && flags&flagNtuple == 0 {
		err = ErrRulesOff
	}
	if err != nil {
		return ruleError(name, what, err)
	}
	return nil
}

// ntuple reads the feature ntuple-filters: whether it is on, and whether it can be changed.
func ntuple(name string) (on, changes bool, err error) {
	at, err := featureBit(name)
	if err != nil {
		return false, false, fmt.Errorf("read the names of features: %w", err)
	}
	request := struct { // struct ethtool_gfeatures
		command, size uint32
		words         [featureWords]struct{ available, requested, active, never uint32 }
	}{command: getFeatures, size: featureWords}
	if err := ethtool(name, unsafe.Pointer(&request)); err != nil {
		return false, false, fmt.Errorf("read the features: %w", err)
	}
	if at/32 >= int(min(request.size, featureWords)) {
		return false, false, fmt.Errorf("the kernel says of %d features no more than %d words", at, request.size)
	}
	word, bit := request.words[at/32], uint32(1)<<(at%32)
	return word.active&bit != 0, word.available&bit != 0 && word.never&bit == 0, nil
}

// featureBit is the bit of ntuple-filters, which differs between versions of the kernel.
func featureBit(name string) (int, error) {
	info := struct { // struct ethtool_sset_info
		command, _ uint32
		mask       uint64
		count, _   uint32
	}{command: getSetInfo, mask: 1 << featureStrings}
	if err := ethtool(name, unsafe.Pointer(&info)); err != nil {
		return 0, err
	}
	// struct ethtool_gstrings: three words, then the strings.
	buffer := make([]uint32, 3+info.count*stringLength/4)
	buffer[0], buffer[1], buffer[2] = getStrings, featureStrings, info.count
	if err := ethtool(name, unsafe.Pointer(&buffer[0])); err != nil {
		return 0, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&buffer[0])), 4*len(buffer))[12:]
	for i := range int(info.count) {
		if word, _, _ := bytes.Cut(text[i*stringLength:(i+1)*stringLength], []byte{0}); string(word) == ntupleFilters {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the kernel knows no feature %s", ntupleFilters)
}

// DriverOf is the name of an interface's driver, "" where the kernel does not say it.
func DriverOf(name string) string {
	info := struct { // struct ethtool_drvinfo
		command uint32
		driver  [stringLength]byte
		_       [160]byte
	}{command: getDriver}
	if err := ethtool(name, unsafe.Pointer(&info)); err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.driver[:])
}
