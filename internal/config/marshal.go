package config

import (
	"fmt"

	"github.com/goccy/go-yaml"
)

// Marshal writes a value as YAML under its json names. What it writes of a
// model.Config, Parse reads.
func Marshal(v any) ([]byte, error) {
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return text, nil
}
