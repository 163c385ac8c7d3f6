package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// LabelWeight is the share of new connections that a Pod gets among the Pods of its Service, or a
// node among nodes that any pod can be reached through.
const LabelWeight = "weir.io/weight"

// AnnotationWeights gives weights to the endpoints of an EndpointSlice: NAME=WEIGHT, with commas,
// where the name is the Pod's, or the endpoint's address.
const AnnotationWeights = "weir.io/weights"

const (
	usualWeight = 100   // of a pod or a node; a node reached for its own pods has it for each
	maxWeight   = 65535 // the model's
)

func parseWeight(text string) (uint16, error) {
	weight, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return usualWeight, fmt.Errorf("weight %q is not a number from 0 to %d, so it is %d", text, maxWeight, usualWeight)
	}
	return uint16(weight), nil
}

// weights returns the weights that a slice gives, by name or address, and what cannot be read.
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

// weightProblems returns which of slices' weights cannot be read.
func weightProblems(list []*discoveryv1.EndpointSlice) (problems []Problem) {
	for _, s := range list {
		_, wrong := weights(s)
		problems = append(problems, wrong...)
	}
	return problems
}

// WithWeights returns an EndpointSlice that has its Pods' weights, by their labels; the same slice
// if no Pod has the label.
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
		list = append([]string{before}, list...) // a Pod's own label takes precedence
	}
	with := *s
	with.Annotations = maps.Clone(s.Annotations)
	if with.Annotations == nil {
		with.Annotations = map[string]string{}
	}
	with.Annotations[AnnotationWeights] = strings.Join(list, ",")
	return &with
}
