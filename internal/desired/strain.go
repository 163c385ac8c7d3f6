package desired

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weir.io/weir/internal/history"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/retry"
)

// signsPause is the least time between two looks at signs of strain.
const signsPause = time.Second

// listen looks again for what is due when agents report signs of strain.
func (c *Controller) listen(ctx context.Context) {
	follow := time.NewTicker(reportsPause)
	defer follow.Stop()
	for ctx.Err() == nil {
		if c.relieves() {
			c.renew() // so that reports about new backends are listened to
		}
		select {
		case <-c.reports.Signs():
			c.renewing.Lock()
			c.renewed = time.Time{}
			c.renewing.Unlock()
			c.renew()
			c.wake()
			retry.Sleep(ctx, signsPause)
		case <-c.moved.listen:
		case <-follow.C:
		case <-ctx.Done():
		}
	}
}

// relieves reports whether signs of strain change the shares of some service's backends.
func (c *Controller) relieves() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.shared.All() {
		if d.Service.Relieves() {
			return true
		}
	}
	return false
}

// Strained returns what agents report about backends of the group's services that are strained, or
// show signs of it, and the result.
func (c *Controller) Strained() map[model.Target]model.BackendStrain {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[model.Target]model.BackendStrain{}
	for d := range c.shared.All() {
		s := &d.Service
		if !s.Relieves() {
			continue
		}
		heard := c.evidence.Heard(s)
		for i := range s.Backends {
			b := s.Backends[i].Endpoint()
			sign, is := heard(b), model.BackendStrain{Parts: model.ShareParts}
			if time.Since(sign.Taken) < history.Silence {
				is.Refused, is.Overflows = sign.Refused, sign.Overflows
			}
			if at, strained := slices.BinarySearchFunc(d.Log.Strained, b, func(s model.Strain, b netip.AddrPort) int { return s.Backend.Compare(b) }); strained {
				is.Parts, is.Since = d.Log.Strained[at].Parts, d.Log.Strained[at].Since
			}
			if is != (model.BackendStrain{Parts: model.ShareParts}) {
				all[model.Target{Service: s.ID(), Backend: b}] = is
			}
		}
	}
	return all
}
