package config

import (
	"slices"

	"weir.io/weir/internal/model"
)

// Decode reads YAML text into a structure, by its json names, as strictly as Parse reads the
// configuration: for the files of programs other than weir. validate says what is wrong with the
// values, when all of them could be read. Wrong text gives Errors.
func Decode(name string, text []byte, to any, validate func() model.FieldErrors) error {
	doc, errs := newDocument(text, false)
	if len(errs) == 0 {
		errs = doc.decode(to, mostExpanded).errs
	}
	if len(errs) == 0 {
		if wrong := validate(); len(wrong) > 0 {
			errs = doc.invalid(wrong)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	for i := range errs {
		errs[i].File = name
	}
	slices.SortStableFunc(errs, func(a, b Error) int { return a.Line - b.Line })
	return errs
}
