package controller

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/kube/v1alpha1"
)

// mostSaid is how many nodes a condition names with what is wrong.
const mostSaid = 3

// established returns the condition of a peer that says whether all nodes that are to speak with it
// do, by what the nodes themselves say.
func (r *resources) established(p *v1alpha1.BGPPeer) metav1.Condition {
	speak := 0
	var wrong []string
	for _, s := range r.staff {
		for _, c := range s.all {
			why, told := c.Peers[p.Name]
			switch {
			case !told || c.Gone:
			case why == "":
				speak++
			default:
				wrong = append(wrong, c.Node+": "+why)
			}
		}
	}
	slices.Sort(wrong) // so that the order alone does not change the condition
	condition := metav1.Condition{Type: v1alpha1.Established, ObservedGeneration: p.Generation}
	switch {
	case len(wrong) > 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonDown
		condition.Message = fmt.Sprintf("%d of %d nodes have no session with it: %s", len(wrong), len(wrong)+speak, strings.Join(wrong[:min(len(wrong), mostSaid)], "; "))
	case speak > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.ReasonSpeaks, fmt.Sprintf("%d nodes have a session with it", speak)
	default:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionUnknown, v1alpha1.ReasonNobody, "no node has said that it speaks with it"
	}
	return condition
}
