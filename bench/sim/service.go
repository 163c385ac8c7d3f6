package sim

import (
	"math/rand/v2"
	"slices"
)

// Service is a distribution of service times, by its name.
type Service string

// The distributions. Each has mean 1.
const (
	Fixed       Service = "fixed"
	Exponential Service = "exponential"
	// Bimodal is nine short requests for each one that takes ten times as long.
	Bimodal Service = "bimodal"
)

// Services are all distributions.
var Services = []Service{Fixed, Exponential, Bimodal}

// Nine of ten requests take bimodalShort, one takes bimodalLong.
const (
	bimodalShort = 10.0 / 19
	bimodalLong  = 100.0 / 19
	bimodalPart  = 0.9
)

func (s Service) known() bool { return slices.Contains(Services, s) }

// draw returns a service time.
func (s Service) draw(random *rand.Rand) float64 {
	switch s {
	case Exponential:
		return random.ExpFloat64()
	case Bimodal:
		if random.Float64() < bimodalPart {
			return bimodalShort
		}
		return bimodalLong
	}
	return 1
}

// SecondMoment returns the mean of the square of a service time.
func (s Service) SecondMoment() float64 {
	switch s {
	case Exponential:
		return 2
	case Bimodal:
		return bimodalPart*bimodalShort*bimodalShort + (1-bimodalPart)*bimodalLong*bimodalLong
	}
	return 1
}
