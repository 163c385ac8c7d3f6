// Package reference has the documents of this folder that weir prints.
package reference

import _ "embed" // of the schema

// Schema is the JSON Schema of configuration files.
//
//go:embed weir.schema.json
var Schema []byte
