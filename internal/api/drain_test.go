package api

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

func TestWhoMayDrain(t *testing.T) {
	s := newServer("test", slog.New(slog.DiscardHandler))
	s.HandleSets(&oneOwner{})
	admin, web := Caller{Name: "ops", Role: model.RoleAdmin}, Caller{Name: "team", Role: model.RoleWrite, Owner: "web"}
	for _, test := range []struct {
		who    Caller
		body   string
		status int
		want   string
	}{
		{admin, `{"backend": "a"}`, 200, `[{"owner":"","service":"","backend":"a","before":"active","state":"draining"}]`},
		{admin, `{"backend": "a", "owner": "cli", "state": "active"}`, 200, `"owner":"cli"`},
		{web, `{"backend": "a"}`, 200, `"owner":"web"`},
		{web, `{"backend": "a", "owner": "web"}`, 200, `"owner":"web"`},
		{web, `{"backend": "a", "owner": "cli"}`, 403, "may write the set of owner"},
		{Caller{Name: "dashboard", Role: model.RoleRead}, `{"backend": "a"}`, 403, "has the role read"},
		{Caller{}, `{"backend": "a"}`, 401, ""},
		{admin, `{"backend": ""}`, 422, `"field":"backend"`},
		{admin, `{"backend": "a", "state": "suspect"}`, 422, `"field":"state"`},
		{admin, `{"backend": "a", "state": "gone"}`, 422, `"field":"state"`},
		{admin, `{"backend": "a", "who": "me"}`, 422, `"field":"who"`},
		{admin, `{`, 400, ""},
	} {
		r := httptest.NewRequest("POST", "/v1/drain", strings.NewReader(test.body))
		w := httptest.NewRecorder()
		s.route(w, r.WithContext(WithCaller(r.Context(), test.who)))
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s asks %s: %d %s, want %d %s", test.who.Name, test.body, w.Code, w.Body, test.status, test.want)
		}
	}
}
