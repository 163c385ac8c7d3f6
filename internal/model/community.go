package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Community is a BGP community: two numbers of 16 bits (RFC 1997), or three of 32 (RFC 8092).
type Community struct {
	Large bool
	Parts [3]uint32 // only large communities have the third
}

// GracefulShutdown is the community of routes that are about to be withdrawn (RFC 8326).
var GracefulShutdown = Community{Parts: [3]uint32{65535, 0}}

// wellKnown are the communities that have a name (IANA, BGP Well-known Communities).
var wellKnown = []struct {
	name  string
	value Community
}{
	{"graceful-shutdown", GracefulShutdown},
	{"no-export", Community{Parts: [3]uint32{65535, 0xff01}}},
	{"no-advertise", Community{Parts: [3]uint32{65535, 0xff02}}},
	{"no-export-subconfed", Community{Parts: [3]uint32{65535, 0xff03}}},
	{"no-peer", Community{Parts: [3]uint32{65535, 0xff04}}},
}

// String returns "65000:100", "65000:1:2" or a name.
func (c Community) String() string {
	for _, known := range wellKnown {
		if known.value == c {
			return known.name
		}
	}
	if c.Large {
		return fmt.Sprintf("%d:%d:%d", c.Parts[0], c.Parts[1], c.Parts[2])
	}
	return fmt.Sprintf("%d:%d", c.Parts[0], c.Parts[1])
}

// MarshalText writes what String returns.
func (c Community) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what String returns.
func (c *Community) UnmarshalText(text []byte) error {
	for _, known := range wellKnown {
		if known.name == string(text) {
			*c = known.value
			return nil
		}
	}
	parts := strings.Split(string(text), ":")
	read := Community{Large: len(parts) == 3}
	bits := 16
	if read.Large {
		bits = 32
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil || len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("%q is not a community; write 65000:100, 65000:1:2 for a large one, or no-export, no-advertise, no-peer", text)
		}
		read.Parts[i] = uint32(n)
	}
	*c = read
	return nil
}

// compare orders communities as they are sent.
func (c Community) compare(o Community) int {
	if c.Large != o.Large {
		if c.Large {
			return 1
		}
		return -1
	}
	return slices.Compare(c.Parts[:], o.Parts[:])
}

// uniqueCommunities sorts a list and leaves out duplicates; nil for none.
func uniqueCommunities(list []Community) []Community {
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, Community.compare)
	return slices.Compact(list)
}
