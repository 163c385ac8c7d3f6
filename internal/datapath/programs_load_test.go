package datapath

import (
	"testing"

	"weir.io/weir/internal/model"
)

// Older kernels load the programs that explain and capture, too: they give a program less stack
// than newer ones.
func TestProgramsLoad(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	d := openUnswept(t)
	must(t, d.Set(model.Table{Interfaces: []string{"wire0"}}))
	e, err := d.Explain("wire0", make([]byte, 60))
	must(t, err)
	if e.Reason != "pass_not_ip" {
		t.Errorf("an empty frame is %s, want pass_not_ip", e.Reason)
	}
	c, err := d.StartCapture(t.Context(), "ops", model.Capture{})
	must(t, err)
	wantCapturing(t, c)
}
