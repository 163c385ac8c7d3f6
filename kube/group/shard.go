package group

import (
	"fmt"

	"weir.io/weir/kube/v1alpha1"
)

// The API server takes objects of up to 1.5 MB, and each change of a Service writes one of them
// anew. So a group's Services are spread over several: an object gets new Services while it is
// smaller than Roomy, which keeps writes small. The Services that it has may grow until it reaches
// Full; beyond that, a Service that grows moves to another object.
const (
	Roomy = 64 << 10
	Full  = 768 << 10
)

// overhead is about how many bytes of a CompiledService are not its documents.
const overhead = 256

// SizeOf returns about how many bytes of a DirectorSet a Service takes.
func SizeOf(c *v1alpha1.CompiledService) int {
	return overhead + len(c.Name) + (len(c.Documents)+2)/3*4
}

// Place returns the DirectorSet that a Service of a size is written in, by the sizes of the
// existing ones: the first that is roomy, so that a small cluster has one, or else a new one. A
// Service larger than Full has one for itself.
func Place(size int, sizes map[int]int) int {
	for set := 0; ; set++ {
		if has := sizes[set]; has == 0 || has < Roomy && has+size <= Full {
			return set
		}
	}
}

// ObjectName returns the name of a group's DirectorSet.
func ObjectName(group string, set int) string { return fmt.Sprintf("%s-%d", group, set) }

// IsNamed reports whether a DirectorSet has the name that follows from its spec: any other is not
// the controller's.
func IsNamed(o *v1alpha1.DirectorSet) bool {
	return o.Name == ObjectName(o.Spec.Group, int(o.Spec.Set))
}

// Owner returns the name of the owner, in directors, of a set's Services.
func Owner(prefix, group string, set int) string { return fmt.Sprintf("%s.%s.%d", prefix, group, set) }
