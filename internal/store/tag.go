package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"weir.io/weir/internal/model"
)

// tagLength is how many characters of a digest make a tag: no two sets will share one.
const tagLength = 32

// Services returns the set's services, without their logs.
func (s Set) Services() []model.Service {
	services := make([]model.Service, len(s.Documents))
	for i, d := range s.Documents {
		services[i] = d.Service
	}
	return services
}

// Tag returns the tag of the set's services: see TagOf.
func (s Set) Tag() string { return TagOf(s.Services()) }

// TagOf returns a tag that differs for different services: the same services in the same order have
// the same tag on every director of one version, whatever their logs are. The tag does not reveal
// the services.
func TagOf(services []model.Service) string {
	digest := sha256.New()
	encoder := json.NewEncoder(digest)
	for i := range services {
		if err := encoder.Encode(&services[i]); err != nil {
			panic("a service cannot be written: " + err.Error()) // valid services can
		}
	}
	return hex.EncodeToString(digest.Sum(nil))[:tagLength]
}
