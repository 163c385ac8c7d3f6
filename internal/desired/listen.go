package desired

import (
	"context"
	"time"
)

// signsPause is the least time between two looks at signs of strain.
const signsPause = time.Second

// listen looks again for what is due when agents report signs of strain.
func (k *Keeper) listen(ctx context.Context) {
	follow := time.NewTicker(reportsPause)
	defer follow.Stop()
	for ctx.Err() == nil {
		if k.relieves() {
			k.renew() // so that reports about new backends are listened to
		}
		select {
		case <-k.reports.Signs():
			k.renewing.Lock()
			k.renewed = time.Time{}
			k.renewing.Unlock()
			k.renew()
			k.wake()
			select {
			case <-time.After(signsPause):
			case <-ctx.Done():
			}
		case <-k.moved.listen:
		case <-follow.C:
		case <-ctx.Done():
		}
	}
}

// relieves reports whether signs of strain change the shares of some service's backends.
func (k *Keeper) relieves() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for d := range k.shared.All() {
		if d.Service.Relieves() {
			return true
		}
	}
	return false
}
