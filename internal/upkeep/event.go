package upkeep

import (
	"fmt"
	"log/slog"
	"strings"

	"weir.io/weir/internal/model"
)

// Event is what has become of a thing that did not hold.
type Event struct {
	Part  string
	What  string // empty: the whole part, which cannot be read
	State model.UpkeepState
	Found string // what was there instead
	By    string // the process that changed it, if known
	Error string // why it could not be repaired, or read
}

// Text says it for people.
func (e Event) Text() string {
	return Text(e.Part, &model.UpkeepProblem{What: e.What, State: e.State, Found: e.Found, By: e.By, Error: e.Error})
}

// Text says for people what is wrong with a thing of a part, or what became of it.
func Text(part string, p *model.UpkeepProblem) string {
	var text strings.Builder
	text.WriteString(part + ": ")
	if p.What != "" {
		text.WriteString(p.What + " ")
	}
	if p.State == model.UpkeepHolds {
		text.WriteString("is as it should be again")
		return text.String()
	}
	text.WriteString(p.Found)
	if p.By != "" {
		text.WriteString(", changed by " + p.By)
	}
	switch p.State {
	case model.UpkeepRepaired:
		text.WriteString(": repaired")
	case model.UpkeepWaiting:
		text.WriteString(": weir waits for it")
	case model.UpkeepFailing:
		text.WriteString(": " + p.Error)
	case model.UpkeepContested:
		fmt.Fprintf(&text, ": repaired %d times within %v, and somebody changes it back: weir leaves it until that stops or the configuration changes", Most, Window)
		if p.Error != "" {
			text.WriteString("; the last repair failed: " + p.Error)
		}
	}
	return text.String()
}

// log writes a repair as a warning: it undoes a change that was not asked for. Lasting problems are
// logged by the list of problems.
func (e Event) log(log *slog.Logger) {
	log = log.With("part", e.Part, "what", e.What, "found", e.Found)
	if e.By != "" {
		log = log.With("by", e.By)
	}
	if e.State == model.UpkeepRepaired {
		log.Warn("host repaired")
		return
	}
	log.Debug("host is not repaired", "state", e.State, "error", e.Error)
}
