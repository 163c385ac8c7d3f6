package test

import (
	"strings"
	"syscall"
	"testing"
)

// A director that starts and forwards already, by the program of an earlier process, follows what the
// group wants while another director does not tell it of flows. Otherwise the directors' rings would
// differ, and connections that one of them has placed would break at the other one.
func TestStartFollowsTheGroup(t *testing.T) {
	t.Parallel()
	l := newSharingLab(t, "")
	l.apply(0, everyBackend(3)...)
	starts := l.directors[1]
	starts.end(syscall.SIGTERM)
	before := len(starts.logged())
	on(t, l.hosts[0], "nft", "table inet silent { chain input { type filter hook input priority 0; tcp dport 6082 drop; }; chain output { type filter hook output priority 0; tcp sport 6082 drop; }; }")
	starts.start()
	log := ""
	for changes := 0; !strings.Contains(log, "director runs"); changes++ {
		l.give(0, everyBackend(2+changes%2)...)
		select {
		case <-starts.ended:
			t.Fatalf("it ended:\n%s", starts.logged())
		default:
		}
		log = starts.logged()[before:]
	}
	follows, runs := strings.Index(log, "the group's state runs"), strings.Index(log, "director runs")
	if follows < 0 || follows > runs {
		t.Errorf("it does not follow the group while it waits:\n%s", log)
	}
}
