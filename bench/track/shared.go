package track

import (
	"context"
	"errors"
	"fmt"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// drains are the changes that make so many percent of the slots shared: in each, a
// part of every VIP's backends drains, from and up to a share of them.
//
// A slot is shared when its owner or its backup has changed: not only when one of
// them drains, because Maglev moves a few of the others' slots, too. If one half
// drains and then the other one, nobody keeps a slot.
var drains = map[int][][2]float64{
	0:   nil,
	25:  {{0, 0.096}},
	100: {{0, 0.5}, {0.5, 1}},
}

// sharedWithin is how many percent the slots may be more or less than was asked for.
const sharedWithin = 3

// drained is the configuration of one of these changes.
func (t *Track) drained(part [2]float64) model.Config {
	c := t.config(wholeSet)
	for n := range c.Services {
		backends := c.Services[n].Backends
		for b := int(part[0] * float64(len(backends))); b < int(part[1]*float64(len(backends))); b++ {
			backends[b].State = model.Draining
		}
	}
	return c
}

// share makes as many slots shared as the options say, and returns the backend of
// each flow that is new then; nil: nothing changed.
func (t *Track) share(ctx context.Context) (func(flow int) int, error) {
	changes, known := drains[t.Shared]
	if !known {
		return nil, fmt.Errorf("%d %% of the slots cannot be shared", t.Shared)
	}
	var placement func(int) int
	for n, part := range changes {
		c := t.drained(part)
		if err := t.director.Write(c); err != nil {
			return nil, err
		}
		if err := t.director.Await(ctx, "follow its file", func() error { return t.generations(ctx, n+2) }); err != nil {
			return nil, err
		}
		placement = t.placement(c)
	}
	return placement, t.checkShared(ctx)
}

var errNotFollowed = errors.New("a change has not arrived")

// generations looks whether every service's log has so many.
func (t *Track) generations(ctx context.Context, want int) error {
	services, err := api.NewClient(t.director.Socket).Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		if s.Log.Generations != want {
			return errNotFollowed
		}
	}
	return nil
}

// checkShared looks whether the director says the same of its slots.
func (t *Track) checkShared(ctx context.Context) error {
	if t.Older != "" {
		return nil // which may not say it
	}
	services, err := api.NewClient(t.director.Socket).Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range services {
		percent := 100 * s.Log.Shared / s.Slots
		if percent < t.Shared-sharedWithin || percent > t.Shared+sharedWithin {
			return fmt.Errorf("%d of %d slots of %s are shared, want %d %%", s.Log.Shared, s.Slots, s.Name, t.Shared)
		}
	}
	return nil
}
