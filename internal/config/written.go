package config

import (
	"bytes"
	"encoding/json"
	"io"

	"weir.io/weir/internal/model"
)

// written reads a set in the form that weir itself writes, {"services":[...]} with each service as
// model.Service or model.StoredService is written: weir's own programs are clients of directors, and their sets are the
// large ones. It takes only the memory of the services, but a YAML tree of the same text takes a
// hundred times its length. A text of any other form is not read.
func written(text []byte) (services []model.Service, is bool) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	for _, want := range []json.Token{json.Delim('{'), "services", json.Delim('[')} {
		if got, err := decoder.Token(); err != nil || got != want {
			return nil, false
		}
	}
	services, expanded := []model.Service{}, 0
	for decoder.More() {
		var one json.RawMessage
		if decoder.Decode(&one) != nil {
			return nil, false
		}
		var stored model.StoredService
		if json.Unmarshal(one, &stored) != nil {
			return nil, false
		}
		s := model.Service(stored)
		// The decoder accepts keys in capitals, repeated and unknown ones, and null; its result is
		// right if it is written as the same text.
		again, err := json.Marshal(&s)
		if !bytes.Equal(again, one) && err == nil {
			again, err = json.Marshal(stored)
		}
		if err != nil || !bytes.Equal(again, one) || bytes.Contains(one, []byte(":null")) {
			return nil, false
		}
		if expanded += model.SizeOf([]model.Service{s}); expanded > mostExpanded {
			return nil, false
		}
		s.Backends = append(make([]model.Backend, 0, len(s.Backends)), s.Backends...)
		services = append(services, s)
	}
	for _, want := range []json.Token{json.Delim(']'), json.Delim('}')} {
		if got, err := decoder.Token(); err != nil || got != want {
			return nil, false
		}
	}
	_, err := decoder.Token()
	return services, err == io.EOF
}
