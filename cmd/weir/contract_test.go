package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checks are those of schemathesis. One is left out: that everything the document allows is
// accepted. The document does not say that names are unique, ring sizes are prime and VIPs are no
// loopback addresses: a set that breaks this is refused, with the field's name.
const checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," +
	"response_schema_conformance,negative_data_rejection,missing_required_header,unsupported_method,allow_header_conformance,ignored_auth"

// A director answers as its document says, whatever it is asked: schemathesis reads the document
// over TCP, and tries everything that the document allows, and what it does not.
func TestContract(t *testing.T) {
	program, err := filepath.Abs("../../build/venv/bin/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: make venv installs it", err)
	}
	h := newHost(t)
	h.configure(h.withAPI(t)+"coalesce: 1ms\ndirector: {interfaces: [eth0], store: {directory: "+h.beside("state")+"}}", "mine")
	p := h.start("director runs")
	defer p.stop()
	if out, ok := h.applies(t, "cli", map[string]int{"web": 10}); !ok {
		t.Fatal(out)
	}
	// Some seconds, or as long as make contract takes.
	examples, phases := os.Getenv("WEIR_CONTRACT_EXAMPLES"), "examples,coverage,fuzzing"
	if examples == "" {
		examples, phases = "5", "examples,coverage"
	}
	cmd := h.Command(context.Background(), program, "run", remoteURL+"/v1/openapi.json", "--checks", checks, "--max-examples", examples, "--phases", phases,
		"--header", "Authorization: Bearer "+adminToken, "--tls-verify", h.beside("api.pem"), "--seed", "1", "--rate-limit", "280/s", "--no-color",
		"--suppress-health-check", "all", "--exclude-path", "/v1/events", "--exclude-path", "/v1/live") // these streams do not end
	cmd.Dir = t.TempDir()
	cmd.Args = append(cmd.Args, "--exclude-path", "/v1/capture") // a capture ends only by its limits
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
	if log := p.stderr.String(); strings.Contains(log, "panic") || strings.Contains(log, adminToken) {
		t.Errorf("the director logged:\n%s", log)
	}
}
