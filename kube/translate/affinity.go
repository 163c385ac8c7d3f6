package translate

import corev1 "k8s.io/api/core/v1"

// affinityProblems says what of a Service's session affinity is not as it asks for. Clients are
// placed by their addresses, which no director remembers, so no time is counted: not one after
// which a client is placed anew, and not one for which it stays where it is when backends change.
// The API server fills its default in, which nobody has asked for.
func affinityProblems(s *corev1.Service) []Problem {
	c := s.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil || *c.ClientIP.TimeoutSeconds == corev1.DefaultClientIPServiceAffinitySeconds {
		return nil
	}
	return problem(Unsupported, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: %d s are not counted. A client's connections go to the backend that its address is placed on, for as long as the backends and their weights stay the same, also after that time; when some come or go, the next connections of some clients go to others, also before it", *c.ClientIP.TimeoutSeconds)
}
