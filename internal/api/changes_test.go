package api_test

import (
	"context"
	"net/http"
	"regexp"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// countedSets counts what comes through.
type countedSets struct {
	ownSets
	puts *int
}

func (s countedSets) Put(context.Context, string, api.SetText, api.Condition) (api.SetChange, error) {
	*s.puts++
	return api.SetChange{}, nil
}

// A client that changes sets all the time is told when to go on, by whichever operation, and no other one is.
func TestChangesHaveAPace(t *testing.T) {
	puts := 0
	server := shared(t, countedSets{ownSets{sets: map[string][]model.Service{"red": {serviceIn("red-web", red)}}}, &puts})
	const many = 1000
	for range many {
		ask(server, redWrites, http.MethodPut, "/v1/sets/red", `{"services":[]}`)
	}
	if puts == 0 || puts > many/2 {
		t.Errorf("%d of %d changes in a row are made", puts, many)
	}
	for path, body := range map[string]string{"plan?owner=red": `{"services":[]}`, "drain": `{"backend":"a"}`,
		"explain": `{"segment":"vxlan:5001","protocol":"red-web","with":{"owner":"red","services":[]}}`} {
		limited := 0
		text := ""
		for range 10 { // a place may have come back meanwhile
			var code int
			if code, text = ask(server, redWrites, http.MethodPost, "/v1/"+path, body); code == http.StatusTooManyRequests {
				limited++
			}
		}
		if limited == 0 || !regexp.MustCompile(`Retry-After:\[[1-9]`).MatchString(text) {
			t.Errorf("%s: after that %d of 10 wait; the last is answered %s", path, limited, text)
		}
	}
	other := redWrites
	other.Name = "red-2"
	admin := api.Caller{Name: "root", Role: model.RoleAdmin}
	for _, who := range []api.Caller{other, admin} {
		if code, text := ask(server, who, http.MethodPut, "/v1/sets/red", `{"services":[]}`); code != http.StatusOK {
			t.Errorf("%s is answered with %d: %s", who.Name, code, text)
		}
	}
}
