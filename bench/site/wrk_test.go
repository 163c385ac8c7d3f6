package site

import (
	"errors"
	"strings"
	"testing"
	"time"
)

const good = `Running 1m test @ http://198.18.1.1:80/
  2 threads and 32 connections
JSON{"requests":500,"elapsed":250000,"p50":319.000000,"p99":6387.500000,"connect":0,"read":0,"write":0,"status":0,"timeout":0}
`

func TestParseReport(t *testing.T) {
	got, err := parseReport([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Requests: 500, Elapsed: 250 * time.Millisecond, Latency50: 319 * time.Microsecond,
		Latency99: 6387500 * time.Nanosecond}
	if got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

// One request without an answer makes a measurement an error.
func TestParseReportOfFailures(t *testing.T) {
	for _, kind := range []string{"connect", "read", "write", "status", "timeout"} {
		text := strings.Replace(good, `"`+kind+`":0`, `"`+kind+`":1`, 1)
		if _, err := parseReport([]byte(text)); !errors.Is(err, ErrRequestsFailed) {
			t.Errorf("%s error: %v, want %v", kind, err, ErrRequestsFailed)
		}
	}
	if _, err := parseReport([]byte(strings.Replace(good, "500", "0", 1))); !errors.Is(err, ErrRequestsFailed) {
		t.Errorf("nothing answered: %v, want %v", err, ErrRequestsFailed)
	}
	if _, err := parseReport([]byte("unable to connect")); err == nil {
		t.Error("a report without numbers was accepted")
	}
}
