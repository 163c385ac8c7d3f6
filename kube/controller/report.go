package controller

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"weir.io/weir/kube/translate"
)

// repeat is how often what is still wrong is said again: the API server forgets events after
// an hour.
const repeat = 20 * time.Minute

// addressAssigned is the reason of the event that a Service got its addresses.
const addressAssigned = "AddressAssigned"

// Events are said so many at once, and then as many a second. The client's library keeps a
// thousand that are not sent yet, and throws away what is more.
const (
	eventsAtOnce    = 500
	eventsPerSecond = 50
)

// reporter tells users what is wrong with their Services, by events on these: once, and
// again while it stays so.
type reporter struct {
	events record.EventRecorder
	said   map[types.UID]map[translate.Problem]time.Time
	may    flowcontrol.PassiveRateLimiter
}

func newReporter(events record.EventRecorder) *reporter {
	return &reporter{events: events, said: map[types.UID]map[translate.Problem]time.Time{}, may: flowcontrol.NewTokenBucketPassiveRateLimiter(eventsPerSecond, eventsAtOnce)}
}

// report returns those of whom not all has been said, because it was too much at once.
func (r *reporter) report(p *plan, now time.Time) (rest map[*wish]bool) {
	for _, uid := range p.left {
		delete(r.said, uid)
	}
	p.left = nil
	rest = map[*wish]bool{}
	for w := range p.unsettled {
		if !r.of(w, now) {
			rest[w] = true
		}
	}
	return rest
}

// of reports whether all has been said of one.
func (r *reporter) of(w *wish, now time.Time) bool {
	if w.service == nil {
		return true // a Gateway's conditions say it
	}
	before, all := r.said[w.service.UID], true
	if w.told {
		if all = r.may.TryAccept(); all {
			w.told = false
			r.events.Event(w.service, corev1.EventTypeNormal, addressAssigned, "it is reached at "+addressText(w))
		}
	}
	said := map[translate.Problem]time.Time{} // what is not wrong any more is forgotten
	for _, problems := range w.problems {
		for _, problem := range problems {
			when, known := before[problem]
			if !known || now.Sub(when) >= repeat {
				if !r.may.TryAccept() {
					all = false
					continue
				}
				r.events.Event(w.service, corev1.EventTypeWarning, string(problem.Reason), shortened(problem.Message))
				when = now
			}
			said[problem] = when
		}
	}
	if r.said[w.service.UID] = said; len(said) == 0 {
		delete(r.said, w.service.UID)
	}
	return all
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
