package translate

import corev1 "k8s.io/api/core/v1"

// affinityProblems says how a Service's session affinity differs from what it asks for. Clients are
// placed by their addresses, which no director remembers, so no time is counted: neither one after
// which a client is placed anew, nor one for which it stays when backends change. The API server
// fills in its default, which no user has asked for.
func affinityProblems(s *corev1.Service) []Problem {
	c := s.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil || *c.ClientIP.TimeoutSeconds == corev1.DefaultClientIPServiceAffinitySeconds {
		return nil
	}
	return problem(Unsupported, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: %d s are not counted. A client's connections go to the backend that its address is placed on, for as long as the backends and their weights stay the same, also after that time; when some come or go, the next connections of some clients go to others, also before it", *c.ClientIP.TimeoutSeconds)
}
