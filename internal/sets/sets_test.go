package sets

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/desired"
	"weir.io/weir/internal/etcdclient"
)

// The status says whose fault it is that a set was not put: a client may try again if the store did
// not answer.
func TestWhatKeepsASetFromBeingPut(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
		says string
	}{
		{fmt.Errorf("ask etcd at https://10.0.0.9:2379: %w: deadline", etcdclient.ErrUnreachable), http.StatusServiceUnavailable, "https://10.0.0.9:2379"},
		{desired.ErrOtherSet, http.StatusPreconditionFailed, ""},
		{&desired.RefusedError{Conflict: true}, http.StatusConflict, ""},
		{&desired.RefusedError{}, http.StatusUnprocessableEntity, ""},
	} {
		var p *api.Problem
		if err := worded(test.err); !errors.As(err, &p) || p.Status != test.want || !strings.Contains(p.Detail, test.says) {
			t.Errorf("%v is answered as %v, want %d with %q", test.err, err, test.want, test.says)
		}
	}
	if err := worded(errors.New("no space left")); errors.As(err, new(*api.Problem)) {
		t.Errorf("a full disk is answered as %v", err)
	}
}
