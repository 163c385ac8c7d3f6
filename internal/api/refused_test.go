package api

import (
	"fmt"
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
	const text = "clients show what is no client's of api.clients: "
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
	r.note(refusedCertificate, "10.0.0.3:1", `asks for "x": tls: bad certificate`)
	r.forget(refusedUnknown)
	says(`clients refuse the certificate in api.cert: 10.0.0.3 (asks for "x": tls: bad certificate)`)
	now = now.Add(refusedLasts)
	says("")
	var counts []string
	for _, c := range r.tally() {
		counts = append(counts, fmt.Sprintf("%s %d", c.Name, c.Count))
	}
	if got, want := strings.Join(counts, ", "), "certificate 1, client_certificate 0, unknown 10006, nothing_shown 1, handshake 1"; got != want {
		t.Errorf("it counts %s, want %s", got, want)
	}
}
