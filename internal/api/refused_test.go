package api

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// Refusals are told by their cause, with few of the addresses that anybody can have, until a while
// after the last one, and until the files are others. Browsers and scanners are counted only.
func TestRefusalsAreTold(t *testing.T) {
	now := time.Unix(0, 0)
	r := newRefusals()
	r.now = func() time.Time { return now }
	says := func(want string) {
		t.Helper()
		got := ""
		if err := r.problem(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("it says\n%s\nwant\n%s", got, want)
		}
	}
	r.note(refusedNothing, "10.0.0.1:1000", "")
	r.note(refusedHandshake, "10.0.0.1:1000", "")
	says("")
	r.note(refusedUnknown, "10.0.0.2:1000", "a token")
	now = now.Add(refusedLasts / 2)
	for port := range 5 {
		r.note(refusedUnknown, fmt.Sprintf("10.0.0.1:%d", port), "a token")
	}
	const text = "callers show a token or a certificate name that api.clients does not have: "
	says(text + "10.0.0.1 (a token), 10.0.0.2 (a token)")
	now = now.Add(refusedLasts / 2)
	says(text + "10.0.0.1 (a token)")
	for host := range 10000 {
		r.note(refusedUnknown, fmt.Sprintf("[2001:db8::%x]:80", host), "a token")
	}
	says(text + "10.0.0.1 (a token), 2001:db8::0 (a token), 2001:db8::1 (a token), others")
	if got := len(r.recent[refusedUnknown]); got > mostRefused {
		t.Errorf("%d addresses are remembered", got)
	}
	for _, asked := range []string{"x", "y", "x"} { // the caller chooses the name
		r.note(refusedCertificate, "10.0.0.3:1", fmt.Sprintf("asks for %q: tls: bad certificate", asked))
	}
	r.forget(refusedUnknown)
	says(`clients refuse the certificate in api.cert: 10.0.0.3 (asks for "x": tls: bad certificate)`)
	now = now.Add(refusedLasts)
	says("")
	var counts []string
	for _, c := range r.tally() {
		counts = append(counts, fmt.Sprintf("%s %d", c.Name, c.Count))
	}
	if got, want := strings.Join(counts, ", "), "certificate 3, client_certificate 0, unknown 10006, nothing_shown 1, handshake 1"; got != want {
		t.Errorf("it counts %s, want %s", got, want)
	}
}

// The part of the text that a caller chooses is short.
func TestRefusalsAreBounded(t *testing.T) {
	alert := &net.OpError{Op: "remote error", Err: tls.AlertError(42)}
	cause, what := causeOf(alert, strings.Repeat("a", 1<<16), nil)
	if cause != refusedCertificate || !strings.Contains(what, "aaa") || len(what) > 200 {
		t.Errorf("of %s it says %d characters: %.300s", cause, len(what), what)
	}
}
