package track

import (
	"context"
	"errors"
	"fmt"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// drains are the changes that make that percentage of the slots shared: in each change a part of
// every VIP's backends drains, from one share of them up to another.
//
// A slot is shared when its owner or its backup has changed: not only when one of them drains,
// because Maglev moves a few of the others' slots, too. If one half drains and then the other, no
// backend keeps a slot.
var drains = map[int][][2]float64{
	0:   nil,
	25:  {{0, 0.096}},
	100: {{0, 0.5}, {0.5, 1}},
}

// sharedWithin is by how many percent of the slots the result may differ from the request.
const sharedWithin = 3

// drained is the configuration after one of these changes.
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

// share makes as many slots shared as the options say, and returns the backend of each flow that
// begins then; nil: nothing changed.
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

// generations checks that every service's log has that many generations.
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

// checkShared checks that the director reports as many shared slots.
func (t *Track) checkShared(ctx context.Context) error {
	if t.Older != "" {
		return nil // an older version may not report it
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
