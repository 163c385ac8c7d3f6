package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// LabelWeight is how much a Pod gets of new connections beside the others of its Service, and
// a node that any pod can be reached by beside other nodes.
const LabelWeight = "weir.io/weight"

// AnnotationWeights says the same of the endpoints of an EndpointSlice: NAME=WEIGHT, with
// commas, where the name is the Pod's, or the endpoint's address.
const AnnotationWeights = "weir.io/weights"

const (
	usualWeight = 100   // of a pod, or a node; of a node by its pods for each of them
	maxWeight   = 65535 // the model's
)

func parseWeight(text string) (uint16, error) {
	weight, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return usualWeight, fmt.Errorf("weight %q is not a number from 0 to %d, so it is %d", text, maxWeight, usualWeight)
	}
	return uint16(weight), nil
}

// weights returns those that a slice says, by names and addresses, and what cannot be read.
func weights(s *discoveryv1.EndpointSlice) (of map[string]uint16, problems []Problem) {
	text := s.Annotations[AnnotationWeights]
	if text == "" {
		return nil, nil
	}
	of = map[string]uint16{}
	for one := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(one, "=")
		weight, err := parseWeight(number)
		if name = strings.TrimSpace(name); err != nil {
			problems = append(problems, problem(Unsupported, "%s of %s: %v", LabelWeight, name, err)...)
		}
		of[name] = weight
	}
	return of, problems
}

// weightProblems returns what cannot be read of slices' weights.
func weightProblems(list []*discoveryv1.EndpointSlice) (problems []Problem) {
	for _, s := range list {
		_, wrong := weights(s)
		problems = append(problems, wrong...)
	}
	return problems
}

// WithWeights returns an EndpointSlice that says what weights its Pods have, by what they are
// labelled; the same one, if none is.
func WithWeights(s *discoveryv1.EndpointSlice, labelled func(pod string) (string, bool)) *discoveryv1.EndpointSlice {
	var list []string
	for i := range s.Endpoints {
		if target := s.Endpoints[i].TargetRef; target != nil && target.Kind == "Pod" {
			if weight, is := labelled(target.Name); is {
				list = append(list, target.Name+"="+weight)
			}
		}
	}
	if len(list) == 0 {
		return s
	}
	slices.Sort(list)
	if before := s.Annotations[AnnotationWeights]; before != "" {
		list = append([]string{before}, list...) // what is said of a Pod itself counts
	}
	with := *s
	with.Annotations = maps.Clone(s.Annotations)
	if with.Annotations == nil {
		with.Annotations = map[string]string{}
	}
	with.Annotations[AnnotationWeights] = strings.Join(list, ",")
	return &with
}
