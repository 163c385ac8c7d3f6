package queues

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// reportInterval is how often agents report loads: as often as they may. A listing of all
// sockets takes them longer, so it is what they can.
const reportInterval = model.Duration(10 * time.Millisecond)

// report has agents tell the director their servers' loads.
func (l *Lab) report(c *model.Config) error {
	key := make([]byte, 32) // known to everybody in the lab
	file := filepath.Join(l.balancer.Dir(), "loads.keys")
	if err := os.WriteFile(file, []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the key for reports of loads: %w", err)
	}
	c.Loads = model.Loads{KeyFile: file, Interval: reportInterval}
	return nil
}

// awaitLoads returns when every policy that goes by loads knows them.
func (l *Lab) awaitLoads(ctx context.Context) error {
	return l.director.Await(ctx, "know the servers' loads", func() error {
		_, err := l.degradations(ctx)
		return err
	})
}

// degradations is how often services have been placed without loads so far because reports
// were missing; an error if one is now.
func (l *Lab) degradations(ctx context.Context) (n uint64, err error) {
	services, err := api.NewClient(l.director.Socket).Services(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the services: %w", err)
	}
	for _, s := range services {
		if s.Loads == nil {
			continue
		}
		if s.Loads.Degraded {
			return n, fmt.Errorf("service %s goes in turn: loads of %d of its backends are not known", s.Name, s.Loads.Stale)
		}
		n += s.Loads.Degradations
	}
	return n, nil
}
