package group

import (
	"fmt"

	"weir.io/weir/kube/v1alpha1"
)

// The API server takes objects of up to 1.5 MB, and each change of a Service writes one of them
// anew. So a group's Services are cut into several: one gets new Services while it is smaller
// than Roomy, which keeps writes small; those that it has may grow up to Full, and beyond that
// what grows moves to another one.
const (
	Roomy = 64 << 10
	Full  = 768 << 10
)

// overhead is what of a CompiledService is not its documents, about.
const overhead = 256

// SizeOf returns how many bytes of a DirectorSet a Service takes, about.
func SizeOf(c *v1alpha1.CompiledService) int {
	return overhead + len(c.Name) + (len(c.Documents)+2)/3*4
}

// Place returns which DirectorSet a Service of a size is written in, by the sizes of those that
// there are: the first one that is roomy, so that a small cluster has one, or the next that
// there is not yet. One that is larger than all of them has one for itself.
func Place(size int, sizes map[int]int) int {
	for set := 0; ; set++ {
		if has := sizes[set]; has == 0 || has < Roomy && has+size <= Full {
			return set
		}
	}
}

// ObjectName returns the name of a group's DirectorSet.
func ObjectName(group string, set int) string { return fmt.Sprintf("%s-%d", group, set) }

// IsNamed reports whether a DirectorSet has the name of what it says that it is: another one is
// not the controller's.
func IsNamed(o *v1alpha1.DirectorSet) bool {
	return o.Name == ObjectName(o.Spec.Group, int(o.Spec.Set))
}

// Owner returns whose set in directors the Services of a set are.
func Owner(prefix, group string, set int) string { return fmt.Sprintf("%s.%s.%d", prefix, group, set) }
