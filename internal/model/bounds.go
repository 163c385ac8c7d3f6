package model

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Bounds on texts that other programs may have written: what agents report, and documents. A few
// bytes of text can stand for a large set of slots, or for an element of a list with all its
// defaults.
const (
	mostSlotBytes = 16 << 20 // of sets of slots, in one text
	objectBytes   = 16       // a text has at least so many bytes for each object or null in it
	fewObjects    = 64       // or no more than these
)

// CheckObjects refuses a text, of documents or a report, that has more objects than weir writes in so
// many bytes: each may stand for an element with all its defaults.
func CheckObjects(text []byte) error {
	objects := bytes.Count(text, []byte("{")) + bytes.Count(text, []byte("null"))
	if most := fewObjects + len(text)/objectBytes; objects > most {
		return fmt.Errorf("has %d objects in %d bytes, more than %d", objects, len(text), most)
	}
	return nil
}

// readSlotSets reads sets of slots, unless all of them together take more than they may; nil stays
// nil.
func readSlotSets(texts []*string) ([]*SlotSet, error) {
	bytes := 0
	for _, text := range texts {
		if text == nil {
			continue
		}
		size, _, _ := strings.Cut(*text, " ")
		if n, err := strconv.Atoi(size); err == nil && n > 0 && n <= maxSlotSet {
			bytes += n / 8
		}
		if bytes > mostSlotBytes {
			return nil, fmt.Errorf("has sets of slots of more than %d bytes", mostSlotBytes)
		}
	}
	sets := make([]*SlotSet, len(texts))
	for i, text := range texts {
		if text == nil {
			continue
		}
		sets[i] = &SlotSet{}
		if err := sets[i].UnmarshalText([]byte(*text)); err != nil {
			return nil, err
		}
	}
	return sets, nil
}
