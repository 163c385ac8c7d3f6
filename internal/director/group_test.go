package director

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/problems"
)

// A director that has none of its group's addresses does not try to join again, so what was listed of the
// last attempt stays.
func TestProblemOfTheGroupStaysIfNothingIsTried(t *testing.T) {
	list := problems.New(slog.New(slog.DiscardHandler))
	m := &membership{list: list, log: slog.New(slog.DiscardHandler), as: model.Director{Group: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}}
	list.Report(model.ProblemGroup, "", errors.New("refused"))
	m.joinAgain()
	if found := list.Of(model.ProblemGroup); len(found) != 1 {
		t.Errorf("nothing was tried, and the problems of the group are %+v", found)
	}
	m.join(model.Director{})
	if found := list.Of(model.ProblemGroup); len(found) != 0 {
		t.Errorf("it has joined, and the problems of the group are %+v", found)
	}
}
