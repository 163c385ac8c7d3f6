package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir.io/weir/kube/group"
)

// longestWhy is how much is said about why a director does not take a set.
const longestWhy = 200

// taken is what the node says that its director has taken. It says so at once if Services get new
// addresses or ports, or one of them is no longer taken, because the controller waits for that
// before it publishes it; all else it says only when the Lease is renewed anyway, so that pods that
// come and go cost no requests.
type taken struct {
	group.Taken
	fronts uint64
	said   time.Time
}

// is takes in what the director was last given, and which of these sets it does not have.
func (t *taken) is(s *sets, not map[int]error, now time.Time) {
	next := taken{group.Taken{Version: s.version}, s.fronts(), now}
	for n, err := range not {
		if next.Not == nil {
			next.Not = map[int32]string{}
		}
		next.Not[int32(n)] = oneLine(err)
	}
	if t.said.IsZero() || t.fronts != next.fronts || !maps.Equal(t.Not, next.Not) || now.Sub(t.said) >= group.Renew {
		*t = next
	}
}

// oneLine returns what an annotation says of an error.
func oneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > longestWhy {
		text = strings.ToValidUTF8(text[:longestWhy], "") + " ..."
	}
	return text
}

// errorOf makes one error of why sets are not taken.
func errorOf(not map[int]error) error {
	var list []error
	for _, n := range slices.Sorted(maps.Keys(not)) {
		list = append(list, fmt.Errorf("put set %d to the director: %w", n, not[n]))
	}
	return errors.Join(list...)
}
