package test

import (
	"testing"
)

// The director's host answers as a nat backend with super-packets, whose
// checksums are left to the device: what undoes the translation on their way out
// must leave both right.
//
//	curl --- router --- switch --- director, nginx
func TestLocalBackendWithOffloads(t *testing.T) {
	t.Parallel()
	l := newLab(t, size{})
	root := startNginx(t, l.director)
	on(t, l.director, "ethtool", "-K", "eth0", "tx", "on", "sg", "on", "tso", "on", "gso", "on")
	var translated []way
	var services []string
	for _, w := range ways {
		if w.mode == "nat" {
			translated = append(translated, w)
			services = append(services, w.service("tcp", "80", []backend{{number: 0}}))
		}
	}
	startDaemon(t, l.director, "run", configText("eth0", "", services...))
	for _, w := range translated {
		t.Run(w.String(), func(t *testing.T) {
			download(t, l.client, w, []string{root})
			upload(t, l.client, w, []string{root})
		})
	}
}
