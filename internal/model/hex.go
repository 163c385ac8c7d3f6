package model

import (
	"encoding/hex"
	"fmt"
)

// Hex is bytes whose text is hexadecimal, as of a frame.
type Hex []byte

// MarshalText returns two digits for each byte.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads what MarshalText returns.
func (h *Hex) UnmarshalText(text []byte) error {
	bytes, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("bytes in hexadecimal: %w", err)
	}
	*h = bytes
	return nil
}
