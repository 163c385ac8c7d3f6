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
	By    string // who had changed it, where that is known
	Error string // why it could not be repaired, or read
}

// Text says it for people.
func (e Event) Text() string {
	var text strings.Builder
	text.WriteString(e.Part + ": ")
	if e.What != "" {
		text.WriteString(e.What + " ")
	}
	if e.State == model.UpkeepHolds {
		text.WriteString("is as it should be again")
		return text.String()
	}
	text.WriteString(e.Found)
	if e.By != "" {
		text.WriteString(", changed by " + e.By)
	}
	switch e.State {
	case model.UpkeepRepaired:
		text.WriteString(": repaired")
	case model.UpkeepWaiting:
		text.WriteString(": weir waits for it")
	case model.UpkeepFailing:
		text.WriteString(": " + e.Error)
	case model.UpkeepContested:
		fmt.Fprintf(&text, ": repaired %d times within %v, and somebody changes it back: weir leaves it until that stops or the configuration changes", Most, Window)
	}
	return text.String()
}

// log writes it with keys, as warnings: each of them is something that nobody has asked for.
func (e Event) log(log *slog.Logger) {
	log = log.With("part", e.Part, "what", e.What, "found", e.Found)
	if e.By != "" {
		log = log.With("by", e.By)
	}
	switch e.State {
	case model.UpkeepRepaired:
		log.Warn("host repaired")
	case model.UpkeepHolds:
		log.Info("host is as it should be again")
	case model.UpkeepWaiting:
		log.Warn("weir waits for a part of the host")
	case model.UpkeepFailing:
		log.Error("host not repaired", "error", e.Error)
	case model.UpkeepContested:
		log.Error("somebody else changes what weir repairs: it is left until that stops or the configuration changes")
	}
}
