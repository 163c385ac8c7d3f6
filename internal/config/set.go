package config

import "weir.io/weir/internal/model"

// LoadSet reads an owner's services from a file that has no other key but checks that they name, and the
// fields that the file has by former names. An invalid one gives Errors.
func LoadSet(path string) (services []model.Service, former []model.FormerKey, text []byte, err error) {
	text, err = read(path)
	if err != nil {
		return nil, nil, nil, err
	}
	services, former, err = parseSet(path, text)
	return services, former, text, err
}

// ParseSet reads an owner's services from YAML text, as strictly as Parse. What only a director can
// know (its limits, its addresses for full NAT) is left to it. The text may come from any client
// that may write to the API: the cost of reading it is bounded.
func ParseSet(name string, text []byte) ([]model.Service, error) {
	services, _, err := parseSet(name, text)
	return services, err
}

func parseSet(name string, text []byte) (services []model.Service, former []model.FormerKey, err error) {
	if services, is := written(text); is {
		services, err := validSet(nil, services)
		if err == nil {
			return services, nil, nil
		}
		if len(text) > mostSetText {
			return nil, nil, named(name, (&document{}).invalid(err)) // without the lines
		}
	}
	doc, errs := newDocument(text, true)
	var set struct {
		Checks   []model.NamedCheck `json:"checks"` // that services of the set have by name
		Services []model.Service    `json:"services"`
	}
	if len(errs) == 0 {
		dec := doc.decode(&set)
		errs, former = dec.errs, dec.former
		// A file without the key is more likely the wrong file than an empty set.
		if _, given := doc.line("services"); !given && len(errs) == 0 {
			errs = Errors{{Path: "services", Problem: "is required (an empty list is [])"}}
		}
		if dec.full {
			return nil, nil, named(name, errs) // most of it may be missing
		}
		var err error
		set.Services, err = validSet(set.Checks, set.Services)
		errs = append(errs, dec.lost.without(doc.invalid(err))...)
	}
	if len(errs) == 0 {
		return set.Services, former, nil
	}
	return nil, nil, named(name, errs)
}

// validSet gives services their defaults, and says what is wrong with them for every director.
func validSet(checks []model.NamedCheck, services []model.Service) ([]model.Service, error) {
	c := model.Config{Director: model.Director{Limits: model.MostLimits}, Checks: checks, Services: services}
	c.SetDefaults()
	return c.Services, c.Validate()
}
