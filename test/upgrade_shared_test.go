package test

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"weir.io/weir/lab/version"
)

// beforeClasses is a commit before flows had classes (bpf/lib/proof.h), and before directors shared
// fresh flows: it speaks weir-flows/1.
const beforeClasses = "b0b593b"

// Directors of a version without classes are replaced one after the other, while they share
// flows. What the first one imported before stays, as sustained flows. What it imports after that
// from the version before is fresh, because that version does not say the class, and is sustained
// when the other director is replaced, too. All flows outlive both.
//
//	client --- router --- switch --- director, director2
//	                             --- backend1, backend2, backend3
//	                             --- store (etcd)
func TestSharedFlowsOutliveUpgrades(t *testing.T) {
	t.Parallel()
	if err := exec.Command("git", "-C", "..", "cat-file", "-e", beforeClasses).Run(); err != nil {
		t.Skipf("the repository's history does not reach back to %s: %v", beforeClasses, err)
	}
	before, err := version.BuildCommit(t.Context(), "..", built, beforeClasses)
	if err != nil {
		t.Fatal(err)
	}
	if before, err = filepath.Abs(before); err != nil {
		t.Fatal(err)
	}
	l := newSharingLab(t, "")
	for i := range l.directors {
		l.upgrade(i, before)
	}
	l.backendsChange()
	shared := l.kept(0)
	if shared == 0 {
		t.Fatal("no flow is remembered: this test shows nothing")
	}
	l.directors[1].waitFor("know what the other one knows", func() bool { return l.kept(1) >= shared })

	l.upgrade(1, weir)
	if kept := l.kept(1); kept < shared {
		t.Errorf("%d of %d shared flows are sustained after an upgrade: %+v", kept, shared, l.status(1).Flows)
	}
	fresh := l.status(1).Flows.Fresh
	l.connect40()
	l.directors[1].waitFor("hear of flows from the version before", func() bool { return l.status(1).Flows.Fresh > fresh })
	l.goOn("at the version before")

	kept := l.kept(1)
	l.upgrade(0, weir)
	l.directors[1].waitFor("hear of them as sustained flows", func() bool { return l.kept(1) > kept })
	l.goOn("at the upgraded director")
	l.lose(0)
	l.goOn("at the director that has imported them")
}

// upgrade replaces a director by another version of weir.
func (l *sharingLab) upgrade(i int, binary string) {
	l.t.Helper()
	d := l.directors[i]
	before, err := d.services()
	l.must(err)
	d.replace(binary, syscall.SIGTERM)
	d.waitFor("run", func() bool {
		services, err := d.services()
		return err == nil && len(services) == len(before) && l.attached(i)
	})
	l.meetAgain()
}

// meetAgain waits until both directors share and hear.
func (l *sharingLab) meetAgain() {
	l.t.Helper()
	for i, d := range l.directors {
		d.waitFor("share and hear", func() bool {
			peers := l.status(i).Peers
			return len(peers) == 1 && !peers[0].Shares.IsZero() && !peers[0].Listens.IsZero()
		})
	}
}

// connect40 opens connections of which each sends two requests at the first director.
func (l *sharingLab) connect40() {
	l.t.Helper()
	for range 40 {
		l.dial(l.way, "tcp")
	}
	l.goOn("connections that begin")
	l.goOn("and go on")
}
