package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// The dashboard is told which client has drained a backend beside the file, and when.
func TestLiveBackendHasItsOverride(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text, err := json.Marshal(liveBackend(&model.BackendStatus{Name: "a", State: model.Draining, Override: &model.Override{State: model.Draining, By: "ops", At: at}}))
	if want := `"override":{"state":"draining","by":"ops","at":"2026-01-02T03:04:05Z"}`; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("it is %s (%v), want %s in it", text, err, want)
	}
}
