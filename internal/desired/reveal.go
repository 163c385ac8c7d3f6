package desired

import (
	"fmt"
	"slices"

	"weir.io/weir/internal/model"
)

// reveal returns services in which each hidden key is again the key that the same service has: so a
// client can put what it got.
func reveal(services, before []model.Service) ([]model.Service, error) {
	hidden := func(s model.Service) bool {
		return slices.ContainsFunc(s.QUIC, func(q model.QUICConfig) bool { return q.Key.Hidden() })
	}
	if !slices.ContainsFunc(services, hidden) {
		return services, nil
	}
	keys := map[model.ServiceID]map[uint8]model.QUICKey{}
	for i := range before {
		for _, q := range before[i].QUIC {
			id := before[i].ID()
			if keys[id] == nil {
				keys[id] = map[uint8]model.QUICKey{}
			}
			keys[id][q.ID] = q.Key
		}
	}
	var refused RefusedError
	services = slices.Clone(services)
	for i := range services {
		if !hidden(services[i]) {
			continue
		}
		services[i].QUIC = slices.Clone(services[i].QUIC)
		for n := range services[i].QUIC {
			q := &services[i].QUIC[n]
			if !q.Key.Hidden() {
				continue
			}
			if q.Key = keys[services[i].ID()][q.ID]; q.Key.IsZero() {
				refused.Refusals = append(refused.Refusals, Refusal{FieldError: model.FieldError{
					Path:    fmt.Sprintf("services[%d].quic[%d].key", i, n),
					Problem: "is what a key is written as that may not be seen, and the service has none to keep: give the key"}})
			}
		}
	}
	if len(refused.Refusals) > 0 {
		return nil, &refused
	}
	return services, nil
}
