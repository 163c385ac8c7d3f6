package model

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// SlotSet is a set of a ring's slots, or of other numbers below a size. A set that others can see
// is not added to. A nil set has no size and contains everything.
type SlotSet struct {
	size  int
	words []uint64
}

// maxSlotSet bounds the size of a set: it is read from texts of other programs.
const maxSlotSet = 1 << 20

const wordBits = 64

// NewSlotSet returns the empty set of numbers below size.
func NewSlotSet(size int) *SlotSet {
	return &SlotSet{size: size, words: make([]uint64, (size+wordBits-1)/wordBits)}
}

// Size returns how many numbers could be in the set.
func (s *SlotSet) Size() int { return s.size }

// Add puts a number below the size into the set.
func (s *SlotSet) Add(i int) { s.words[i/wordBits] |= 1 << (i % wordBits) }

// Has reports whether a number is in the set.
func (s *SlotSet) Has(i int) bool {
	return s == nil || i < s.size && s.words[i/wordBits]>>(i%wordBits)&1 == 1
}

// HasAny reports whether any number from first to last is in the set.
func (s *SlotSet) HasAny(first, last int) bool {
	for i := first; i <= last; i++ {
		if s.Has(i) {
			return true
		}
	}
	return false
}

// Count returns how many numbers are in the set.
func (s *SlotSet) Count() int {
	n := 0
	for _, word := range s.words {
		n += bits.OnesCount64(word)
	}
	return n
}

// And returns the numbers that two sets of one size have in common.
func (s *SlotSet) And(o *SlotSet) *SlotSet {
	both := NewSlotSet(s.size)
	for i := range both.words {
		both.words[i] = s.words[i] & o.words[i]
	}
	return both
}

// Or returns the numbers in either of two sets of one size.
func (s *SlotSet) Or(o *SlotSet) *SlotSet {
	either := NewSlotSet(s.size)
	for i := range either.words {
		either.words[i] = s.words[i] | o.words[i]
	}
	return either
}

// Within reports whether the set is a subset of another one.
func (s *SlotSet) Within(o *SlotSet) bool {
	switch {
	case o == nil:
		return true
	case s == nil || s.size != o.size:
		return false
	}
	for i, word := range s.words {
		if word&^o.words[i] != 0 {
			return false
		}
	}
	return true
}

// Equal reports whether two sets have the same size and the same numbers.
func (s *SlotSet) Equal(o *SlotSet) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.size == o.size && slices.Equal(s.words, o.words)
}

// Halved returns the set of half the size that has i where this one has 2 i or 2 i + 1.
func (s *SlotSet) Halved() *SlotSet {
	half := NewSlotSet(s.size / 2)
	for i := range s.size / 2 * 2 {
		if s.Has(i) {
			half.Add(i / 2)
		}
	}
	return half
}

// MarshalText writes the size, and the set either as bits or as the gaps before its
// numbers, whichever is shorter: equal sets have equal texts.
func (s *SlotSet) MarshalText() ([]byte, error) {
	raw := s.bits()
	kind, gaps := "bits", s.gaps(len(raw))
	if gaps != nil {
		kind, raw = "gaps", gaps
	}
	return []byte(strconv.Itoa(s.size) + " " + kind + " " + base64.RawStdEncoding.EncodeToString(raw)), nil
}

func (s *SlotSet) bits() []byte {
	raw := make([]byte, 0, len(s.words)*wordBits/8)
	for _, word := range s.words {
		raw = binary.LittleEndian.AppendUint64(raw, word)
	}
	return raw[:(s.size+7)/8]
}

// gaps returns nil if it would take that many bytes.
func (s *SlotSet) gaps(limit int) []byte {
	raw, next := []byte{}, 0
	for i, word := range s.words {
		for ; word != 0; word &= word - 1 {
			number := i*wordBits + bits.TrailingZeros64(word)
			raw = binary.AppendUvarint(raw, uint64(number-next))
			if next = number + 1; len(raw) >= limit {
				return nil
			}
		}
	}
	return raw
}

// UnmarshalText reads what MarshalText writes, and nothing else.
func (s *SlotSet) UnmarshalText(text []byte) error {
	fields := strings.SplitN(string(text), " ", 4)
	if len(fields) != 3 {
		return fmt.Errorf("set of slots %.40q: want a size, bits or gaps, and these", text)
	}
	size, err := strconv.Atoi(fields[0])
	if err != nil || size < 1 || size > maxSlotSet {
		return fmt.Errorf("set of slots: %q is not a size from 1 to %d", fields[0], maxSlotSet)
	}
	raw, err := base64.RawStdEncoding.Strict().DecodeString(fields[2])
	if err != nil {
		return fmt.Errorf("set of slots: %w", err)
	}
	read := NewSlotSet(size)
	switch fields[1] {
	case "bits":
		err = read.readBits(raw)
	case "gaps":
		err = read.readGaps(raw)
	default:
		err = fmt.Errorf("%q is neither bits nor gaps", fields[1])
	}
	if err != nil {
		return fmt.Errorf("set of slots: %w", err)
	}
	*s = *read
	return nil
}

var errBeyond = errors.New("a number is beyond its size")

func (s *SlotSet) readBits(raw []byte) error {
	if len(raw) != (s.size+7)/8 {
		return fmt.Errorf("%d bytes are not the bits of %d numbers", len(raw), s.size)
	}
	for i := range len(raw) * 8 {
		if raw[i/8]>>(i%8)&1 == 0 {
			continue
		}
		if i >= s.size {
			return errBeyond
		}
		s.Add(i)
	}
	return nil
}

func (s *SlotSet) readGaps(raw []byte) error {
	next := uint64(0)
	for len(raw) > 0 {
		gap, n := binary.Uvarint(raw)
		if n <= 0 {
			return errors.New("a gap ends in the middle")
		}
		if gap >= uint64(s.size)-next {
			return errBeyond
		}
		s.Add(int(next + gap))
		next += gap + 1
		raw = raw[n:]
	}
	return nil
}
