package desired

import (
	"context"
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

// Overrides store overrides so that they outlive the process: a store.File.
type Overrides interface {
	Overrides() ([]model.BackendOverride, error)
	SaveOverrides([]model.BackendOverride) error
	// Hold is Update for a change that is made even if it cannot be written.
	Hold(context.Context, store.Change) (store.State, error)
}

// readOverrides reads the overrides that are kept.
func (c *Controller) readOverrides(in Overrides) {
	list, err := in.Overrides()
	if err != nil {
		err = fmt.Errorf("backends that were drained beside the file get connections again: %w", err)
	}
	c.problems.Report(model.ProblemStore, "overrides", err)
	c.overridesIn, c.overrides = in, list
}

// Overridden returns all overrides.
func (c *Controller) Overridden() []model.BackendOverride {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.overrides)
}

// lasting returns those overrides that a version of the file does not end.
func lasting(list []model.BackendOverride, c *model.Config) []model.BackendOverride {
	if len(list) == 0 {
		return nil
	}
	var lasts []model.BackendOverride
	before := model.IndexOverrides(list)
	for i := range c.Services {
		s := &c.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			if o := before.Of(s, b); o != nil && b.State == model.Active {
				lasts = append(lasts, *o)
			}
		}
	}
	return lasts
}

// overriding returns services with the states that overrides give to their backends.
func overriding(services []model.Service, list []model.BackendOverride) []model.Service {
	if len(list) == 0 {
		return services
	}
	services = slices.Clone(services)
	overrides, own := model.IndexOverrides(list), map[string]bool{}
	for i := range list {
		own[list[i].Service] = true
	}
	for i := range services {
		s := &services[i]
		if !own[s.Name] {
			continue
		}
		s.Backends = slices.Clone(s.Backends)
		for j := range s.Backends {
			if o := overrides.Of(s, &s.Backends[j]); o != nil {
				s.Backends[j].State = o.State
			}
		}
	}
	return services
}

// SetOverrides gives these states to backends of the file that runs, in place of all earlier
// overrides of these backends: afterwards each has the override, or none if that is nil. It returns
// when that is forwarded. Unkept says why it lasts no longer than this process, if it does not.
func (c *Controller) SetOverrides(means func(*model.Service, *model.Backend) bool, o *model.Override) (unkept, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next []model.BackendOverride
	before := model.IndexOverrides(c.overrides)
	for i := range c.given.Services {
		s := &c.given.Services[i]
		for j := range s.Backends {
			b := &s.Backends[j]
			switch was := before.Of(s, b); {
			case !means(s, b):
				if was != nil {
					next = append(next, *was)
				}
			case o != nil && was != nil && was.State == o.State:
				next = append(next, *was) // it stays the first client's
			case o != nil:
				next = append(next, model.BackendOverride{Service: s.Name, Backend: b.Name, Address: b.Address, Override: *o})
			}
		}
	}
	if unkept = c.overridesIn.SaveOverrides(next); unkept == nil { // those that could not be read are replaced
		c.problems.Report(model.ProblemStore, "overrides", nil)
	}
	c.overrides = next
	c.hold = true // draining a backend cannot wait for room on a disk
	defer func() { c.hold = false }()
	later := c.unstored
	err = c.storeFile(c.given)
	if later != nil { // a version that is not stored yet is tried again
		c.unstored = later
		c.wake()
	}
	return unkept, err
}
