package config

import (
	"encoding/json"
	"fmt"

	"github.com/goccy/go-yaml"
)

// Marshal writes a value as YAML under its json names. Parse reads what it writes of a
// model.Config. It writes JSON first, because the YAML package leaves out addresses that are set:
// it does not look at private fields to find out what is zero.
func Marshal(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	var ordered any
	if err := yaml.UnmarshalWithOptions(text, &ordered, yaml.UseOrderedMap()); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if text, err = yaml.Marshal(ordered); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return text, nil
}
