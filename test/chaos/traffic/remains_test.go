package traffic

import (
	"testing"
	"time"
)

// open is how many TCP connections the server has.
func (p *pair) open() (n int) {
	p.serving.mu.Lock()
	defer p.serving.mu.Unlock()
	for e := range p.serving.connections {
		if _, tcp := e.(tcpEnd); tcp {
			n++
		}
	}
	return n
}

// Connections that clients give up are gone at the backend as well, although no packet can tell it.
func TestNothingRemainsOfBroken(t *testing.T) {
	p := newPair(t)
	l := p.load(80)
	l.Patience, l.Flows, l.QUICs = time.Second, 0, 0
	l.Start(t.Context())
	waitFor(t, "the server to have them", func() bool { return l.Waiting() == 0 && p.open() >= 97 })
	if err := p.link.A.SetUp(false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the clients to give up, and the server", func() bool { return len(p.tracker.Breaks()) >= 97 && p.open() == 0 })
	if strays := p.tracker.Strays(); len(strays) > 0 {
		t.Errorf("packets went astray: %v", strays)
	}
}
