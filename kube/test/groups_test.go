package kube

import (
	"strings"
	"testing"
)

// The life of a group of directors: two of three nodes forward, by the same logs; a cordoned one
// first withdraws its routes, and the third takes its place; without an API server everything goes
// on; and a deleted group forwards nothing.
func TestDirectorGroup(t *testing.T) {
	l := newGroupLab(t, groupOptions{})
	a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
	l.waitForFit()
	l.controller("first")
	l.waitForStatus("node-a node-b, 1 stand by")

	l.pods("web", 1, 2)
	l.service("web")
	l.waitForAddresses("web", vip)
	l.waitForHops("node-a node-b")
	l.reaches(vip, "pod1", "pod2")
	l.pods("web", 2, 3)
	l.reaches(vip, "pod2", "pod3")
	l.waitForSame(a, b, 2)
	if got := c.documents(); strings.Contains(got, "pod") {
		t.Errorf("node-c stands by and has %s", got)
	}

	a.cordon(true)
	l.waitForHops("node-b node-c")
	if got := a.documents(); !strings.Contains(got, "pod3") {
		t.Errorf("node-a has withdrawn its routes, and its director has %s: it does not forward what is under way", got)
	}
	l.waitForStatus("node-b node-c, 0 stand by")
	l.waitForSame(b, c, 2)
	l.answered(20, "after node-a was cordoned")
	waitFor(t, "node-a to forward nothing any more", func() bool { return a.documents() == "[]" })

	// The loss of the API server changes nothing, whatever else ends meanwhile.
	l.stopServer()
	l.answered(20, "without an API server")
	stop(t, b.sidecar)
	b.startSidecar()
	stop(t, c.weir)
	l.answered(20, "without the process of a director")
	c.startDirector()
	waitFor(t, "the director of node-c to be what it was", func() bool { return strings.Contains(c.documents(), "pod3") })
	l.answered(20, "after it has begun again")
	if hops := l.hops(); hops != "node-b node-c" {
		t.Errorf("without an API server the router sends to %q", hops)
	}
	l.startServer()
	waitFor(t, "the API server to be back", l.ready)

	// Changes then reach all, also the new processes.
	l.pods("web", 1)
	waitFor(t, "only pod1 to answer", func() bool {
		for range 10 {
			if pod, err := l.ask(vip); err != nil || pod != "pod1" {
				return false
			}
		}
		return true
	})
	l.waitForSame(b, c, 1)
	a.cordon(false)
	l.waitForStatus("node-b node-c, 1 stand by")

	// Manual changes are undone.
	l.deleteResource("directorsets", "", "edge-0")
	waitFor(t, "the DirectorSet to be there again", func() bool {
		text, err := l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorsets/edge-0").Do(t.Context()).Raw()
		return err == nil && strings.Contains(string(text), "default/web")
	})
	l.answered(10, "after a DirectorSet was removed")

	l.deleteResource("directorgroups", "", "edge")
	l.waitForHops("")
	for _, n := range l.nodes {
		waitFor(t, n.Name+" to forward nothing", func() bool { return n.documents() == "[]" || strings.Contains(n.documents(), "no set") })
	}
	waitFor(t, "the DirectorSets to be gone", func() bool {
		return l.core.RESTClient().Get().AbsPath("/apis/weir.io/v1alpha1/directorsets/edge-0").Do(t.Context()).Error() != nil
	})
}
