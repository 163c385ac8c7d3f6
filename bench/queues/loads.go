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

// reportInterval is how often agents report loads: as often as they may. Listing all sockets takes
// them longer, so they report as often as they can.
const reportInterval = model.Duration(10 * time.Millisecond)

// report makes agents tell the director their servers' loads.
func (l *Lab) report(c *model.Config) error {
	key := make([]byte, 32) // every host in the lab knows it
	file := filepath.Join(l.balancer.Dir(), "loads.keys")
	if err := os.WriteFile(file, []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the key for reports of loads: %w", err)
	}
	c.Loads = model.Loads{KeyFile: file, Interval: reportInterval}
	return nil
}

// awaitLoads returns when every policy that uses loads knows them. It returns how often services
// have been placed without loads so far, because reports were missing. If the machine is busy for a
// moment, reports may be missing at any time; that is counted, and ends nothing.
func (l *Lab) awaitLoads(ctx context.Context) (degradations uint64, err error) {
	err = l.director.Await(ctx, "know the servers' loads", func() error {
		services, err := l.services(ctx)
		if err != nil {
			return err
		}
		for _, s := range services {
			if s.Loads != nil && s.Loads.Degraded {
				return fmt.Errorf("service %s goes in turn: loads of %d of its backends are not known", s.Name, s.Loads.Stale)
			}
		}
		degradations = count(services)
		return nil
	})
	return degradations, err
}

func (l *Lab) services(ctx context.Context) ([]model.ServiceStatus, error) {
	services, err := api.NewClient(l.director.Socket).Services(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the services: %w", err)
	}
	return services, nil
}

// count is how often the services have been placed without loads.
func count(services []model.ServiceStatus) (degradations uint64) {
	for _, s := range services {
		if s.Loads != nil {
			degradations += s.Loads.Degradations
		}
	}
	return degradations
}
