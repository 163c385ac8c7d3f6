package main

import (
	"context"

	"weir.io/weir/test/chaos/numbers"
)

// Settings of tcp_syncookies.
const (
	cookiesBySeed = -1
	cookiesUsual  = 1
	cookiesAlways = 2
)

// cookies returns a run's tcp_syncookies: every tenth seed shows what happens if no host remembers
// a SYN.
func cookies(set int, seed uint64) int {
	switch {
	case set != cookiesBySeed:
		return set
	case seed%10 == 0:
		return cookiesAlways
	}
	return cookiesUsual
}

// tellApart gives every backend its own sequence numbers if all SYNs are answered with cookies:
// otherwise each would accept the others' cookies.
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

// numbersOf is the offset that clients see on a backend's sequence numbers.
func (h *harness) numbersOf(backend int) uint32 {
	if h.syncookies != cookiesAlways {
		return 0
	}
	const spread = 0x9e3779b1 // far from each other, in every part of a cookie
	return uint32(backend+1) * spread
}
