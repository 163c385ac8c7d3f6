package controller

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
	"weir.io/weir/kube/v1alpha1"
)

// mostNodePorts is how many services for node ports an agent may have to know: one for each port,
// family and director of a group. It is half of what agents have room for.
const mostNodePorts = 4096

// room is the room that is left for services at node ports.
type room struct{ director, agents int }

// fitNodePorts gives Services node ports while directors and agents have room, the oldest first:
// node ports of the others stay kube-proxy's. Services themselves come before any node port.
func (p *plan) fitNodePorts() {
	if p.fitted == p.revision {
		return
	}
	p.fitted = p.revision
	left := map[*translate.DirectorGroup]*room{}
	for _, g := range p.read.groups {
		if g.Of.Spec.NodePorts != nil {
			left[g] = roomOf(g.Of)
		}
	}
	for _, w := range p.of {
		if r := left[w.group]; r != nil && !w.over {
			r.director -= len(w.made.services)
		}
	}
	for _, w := range p.of {
		ports, why := w.made.ports, ""
		if r := left[w.group]; w.over {
			ports = nil
		} else if r != nil && len(ports) > 0 {
			if why = r.take(countNodePorts(ports, w.made.services), int(w.group.Of.Spec.Directors)); why != "" {
				ports, why = nil, fmt.Sprintf("its node ports stay kube-proxy's: %s of DirectorGroup %s", why, w.group.Of.Name)
			}
		}
		if slices.Equal(ports, w.ports) && (len(w.problems[fitting]) > 0) == (why != "") {
			continue
		}
		w.ports, w.problems[fitting], p.unsettled[w] = ports, nil, true
		if why != "" {
			w.problem(fitting, translate.Unsupported, "%s", why)
		}
	}
}

func roomOf(g *v1alpha1.DirectorGroup) *room {
	r := &room{director: model.DefaultServices, agents: mostNodePorts}
	if l := g.Spec.Limits; l != nil && l.Services > 0 {
		r.director = int(l.Services)
	}
	return r
}

// take takes room for a number of services at the addresses of each of some directors, or says why
// there is none.
func (r *room) take(services, directors int) string {
	switch {
	case services > r.director:
		return "there is no room for more in spec.limits.services"
	case services*directors > r.agents:
		return fmt.Sprintf("agents know %d at most, one for each port and family of each of the directors", mostNodePorts)
	}
	r.director, r.agents = r.director-services, r.agents-services*directors
	return ""
}

// countNodePorts is how many services a director has for the node ports of a Service.
func countNodePorts(ports []v1alpha1.ServiceNodePort, services []model.Service) (n int) {
	for i := range services {
		s := &services[i]
		if slices.ContainsFunc(ports, func(p v1alpha1.ServiceNodePort) bool {
			return p.Protocol == s.Protocol.String() && p.Port == int32(s.Port.First)
		}) {
			n++
		}
	}
	return n
}

// nodePortsOf returns the condition of a group that says whether its directors have node ports, by
// what they say; false: they are not to have any.
func nodePortsOf(g *v1alpha1.DirectorGroup, s staff) (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1alpha1.NodePorts, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTaken, ObservedGeneration: g.Generation,
		Message: "directors take connections to Services' node ports at their addresses"}
	var wrong []string
	for _, d := range s.directors {
		if d.NodePorts != "" {
			wrong = append(wrong, d.Node+": "+d.NodePorts)
		}
	}
	if len(s.directors) == 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNotTaken, "the group has no directors"
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNotTaken
		c.Message = fmt.Sprintf("%d of %d directors have not all: %s", len(wrong), len(s.directors), strings.Join(wrong[:min(len(wrong), mostSaid)], "; "))
	}
	return c, g.Spec.NodePorts != nil
}
