package config

import (
	"slices"

	"weir.io/weir/internal/model"
)

// LoadSet reads an owner's services from a file that has no other key. An invalid one
// gives Errors.
func LoadSet(path string) (services []model.Service, text []byte, err error) {
	text, err = read(path)
	if err != nil {
		return nil, nil, err
	}
	services, err = ParseSet(path, text)
	return services, text, err
}

// ParseSet reads an owner's services from YAML text, as strictly as Parse. What only a
// director can know (its limits, its addresses for full NAT) is left to it.
func ParseSet(name string, text []byte) ([]model.Service, error) {
	doc, errs := newDocument(text)
	var set struct {
		Services []model.Service `json:"services"`
	}
	var c model.Config
	if len(errs) == 0 {
		dec := doc.decode(&set)
		errs = dec.errs
		// A file without the key is more likely the wrong one than an empty set.
		if _, given := doc.line("services"); !given && len(errs) == 0 {
			errs = Errors{{Path: "services", Problem: "is required (an empty list is [])"}}
		}
		c.Services = set.Services
		c.Director.Limits = model.Limits{Services: model.MaxServices, Backends: model.MaxBackends,
			RingMemory: model.MaxRingMemory, Fragments: model.MaxFragments, SourceRanges: model.MaxSourceRanges}
		c.SetDefaults()
		errs = append(errs, dec.lost.without(doc.invalid(c.Validate()))...)
	}
	if len(errs) == 0 {
		return c.Services, nil
	}
	for i := range errs {
		errs[i].File = name
	}
	slices.SortStableFunc(errs, func(a, b Error) int { return a.Line - b.Line })
	return nil, errs
}
