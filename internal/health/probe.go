package health

import (
	"context"
	"fmt"

	"weir.io/weir/internal/model"
)

// probe is one way to check backends. It is made once for a check and may be used for many backends
// at once, each in a goroutine of its own. It returns nil when the backend is healthy.
type probe func(ctx context.Context, a *attempt) error

// kinds makes the probes of each kind that does more than connect.
var kinds = map[model.CheckKind]func(how *model.HealthCheck) (probe, error){
	model.CheckHTTP:  newHTTP,
	model.CheckHTTPS: newHTTPS,
	model.CheckTLS:   newTLS,
	model.CheckGRPC:  newGRPC,
	model.CheckUDP:   newUDP,
	model.CheckDNS:   newDNS,
	model.CheckICMP:  func(*model.HealthCheck) (probe, error) { return probeICMP, nil },
}

// newProbe makes a probe that may need parts of the checker.
func (c *Checker) newProbe(how *model.HealthCheck) (probe, error) {
	if how.Kind == model.CheckRedirect {
		return c.redirects.probe, nil
	}
	return newProbe(how)
}

// newProbe makes a probe of a valid check; nil: the connector makes it.
func newProbe(how *model.HealthCheck) (probe, error) {
	if connects[how.Kind] != nil {
		return nil, nil
	}
	make, known := kinds[how.Kind]
	if !known {
		return nil, fmt.Errorf("%q is not a kind of check", how.Kind)
	}
	return make(how)
}
