package main

import (
	"context"

	"weir.io/weir/test/chaos/numbers"
)

// The settings of tcp_syncookies that have a name here.
const (
	cookiesBySeed = -1
	cookiesUsual  = 1
	cookiesAlways = 2
)

// cookies returns a run's tcp_syncookies: every tenth seed shows what happens where
// no host remembers a SYN.
func cookies(set int, seed uint64) int {
	switch {
	case set != cookiesBySeed:
		return set
	case seed%10 == 0:
		return cookiesAlways
	}
	return cookiesUsual
}

// tellApart gives every backend sequence numbers of its own where all SYNs are answered with
// cookies: otherwise each would take those of the others for its own.
func (h *harness) tellApart(ctx context.Context) error {
	for i, b := range h.top.backends {
		offset := h.numbersOf(i)
		if offset == 0 {
			continue
		}
		if err := numbers.Apart(ctx, b.link.B, offset); err != nil {
			return err
		}
	}
	return nil
}

// numbersOf is by how much clients see larger sequence numbers than a backend sends.
func (h *harness) numbersOf(backend int) uint32 {
	if h.syncookies != cookiesAlways {
		return 0
	}
	const spread = 0x9e3779b1 // far from each other, in every part of a cookie
	return uint32(backend+1) * spread
}
