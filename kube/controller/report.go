package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"weir.io/weir/kube/translate"
)

// repeat is how often what is still wrong is said again: the API server forgets events after
// an hour.
const repeat = 20 * time.Minute

// addressAssigned is the reason of the event that a Service got its addresses.
const addressAssigned = "AddressAssigned"

// reporter tells users what is wrong with their Services, by events on these: once, and
// again while it stays so.
type reporter struct {
	events record.EventRecorder
	said   map[types.UID]map[translate.Problem]time.Time
}

func newReporter(events record.EventRecorder) *reporter {
	return &reporter{events: events, said: map[types.UID]map[translate.Problem]time.Time{}}
}

func (r *reporter) report(p *plan, now time.Time) {
	said := make(map[types.UID]map[translate.Problem]time.Time, len(r.said))
	for _, w := range p.of {
		if w.told {
			r.events.Event(w.service, corev1.EventTypeNormal, addressAssigned, "it is reached at "+addressText(w))
		}
		for _, problem := range w.problems {
			uid := w.service.UID
			when, known := r.said[uid][problem]
			if !known || now.Sub(when) >= repeat {
				r.events.Event(w.service, corev1.EventTypeWarning, string(problem.Reason), shortened(problem.Message))
				when = now
			}
			if said[uid] == nil {
				said[uid] = map[translate.Problem]time.Time{}
			}
			said[uid][problem] = when
		}
	}
	r.said = said // those that are gone, and what is not wrong any more, are forgotten
}

// longest is how much an event may say.
const longest = 1024

func shortened(text string) string {
	if len(text) <= longest {
		return text
	}
	const more = " ..."
	return strings.ToValidUTF8(text[:longest-len(more)], "") + more
}

func addressText(w *wish) string {
	var list []string
	for _, a := range w.addresses {
		list = append(list, fmt.Sprint(a))
	}
	return strings.Join(list, " and ")
}
