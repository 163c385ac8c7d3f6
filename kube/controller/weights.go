package controller

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/kube/pool"
	"weir.io/weir/kube/translate"
)

// withWeights returns the slice with the weights of its Pods' labels.
func (c *caches) withWeights(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	if !c.anyWeights { // as in most clusters
		return s
	}
	with := translate.WithWeights(s, func(pod string) (string, bool) {
		p := one[corev1.Pod](c.weighted, s.Namespace+"/"+pod)
		if p == nil {
			return "", false
		}
		return p.Labels[translate.LabelWeight], true
	})
	if with == s {
		delete(c.with, s.UID)
		return s
	}
	if before := c.with[s.UID]; before.of == s && before.with.Annotations[translate.AnnotationWeights] == with.Annotations[translate.AnnotationWeights] {
		return before.with
	}
	c.with[s.UID] = weightedSlice{s, with}
	return with
}

// readWeights finds out whether any Pod has a weight. All slices with weights are made anew.
func (c *caches) readWeights() {
	c.anyWeights = c.weighted != nil && len(c.weighted.GetStore().ListKeys()) > 0
	clear(c.with)
}

// weightedSlice is a slice with the weights of its Pods, and the slice that it was made from.
type weightedSlice struct{ of, with *discoveryv1.EndpointSlice }

// servedByPods returns the Services that some Pods serve.
func (c *caches) servedByPods(pods map[pool.Service]bool) []pool.Service {
	if len(pods) == 0 {
		return nil
	}
	var of []pool.Service
	for _, s := range list[discoveryv1.EndpointSlice](c.slice) {
		for i := range s.Endpoints {
			if target := s.Endpoints[i].TargetRef; target != nil && target.Kind == "Pod" && pods[pool.Service{Namespace: s.Namespace, Name: target.Name}] {
				of = append(of, servedBy(s))
				break
			}
		}
	}
	return of
}
