package model

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

func TestOutdated(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := &x509.Certificate{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	for after, want := range map[time.Duration]string{0: "", 2 * time.Hour: "has ended on 2001-09-09T02:46:40Z", -2 * time.Hour: "begins on 2001-09-09T00:46:40Z"} {
		err := Outdated(c, now.Add(after))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v later it says %v, want %q", after, err, want)
		}
	}
	if err := OutdatedCA([]byte("no PEM"), now); err != nil {
		t.Errorf("of a file without certificates it says %v", err)
	}
}
