package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"weir.io/weir/lab/netlab"
)

// How often a new flow is begun, and how long its one datagram may take to come back.
const (
	flowPause    = 4 * time.Millisecond
	flowPatience = time.Second
)

// newFlows sends single datagrams, each of a flow of its own, and notes which are not answered:
// flows that begin during a loss, and do not send again, show how long traffic notices it.
type newFlows struct {
	client *netlab.Host
	vips   []netip.Addr

	mu    sync.Mutex
	begun []*newFlow
}

type newFlow struct {
	at       time.Time
	done     chan struct{} // closed when answered is known
	answered bool
}

// run begins flows until the context ends.
func (f *newFlows) run(ctx context.Context) {
	var flows sync.WaitGroup
	defer flows.Wait()
	for n := uint64(0); sleep(ctx, flowPause); n++ {
		flow := &newFlow{at: time.Now(), done: make(chan struct{})}
		f.mu.Lock()
		f.begun = append(f.begun, flow)
		f.mu.Unlock()
		flows.Go(func() {
			defer close(flow.done)
			flow.answered = f.ask(ctx, f.vips[n%uint64(len(f.vips))], n)
		})
	}
}

// ask reports whether a datagram with that number came back.
func (f *newFlows) ask(ctx context.Context, vip netip.Addr, number uint64) bool {
	conn, err := f.client.DialContext(ctx, "udp", netip.AddrPortFrom(vip, echoPort).String())
	if err != nil {
		return false
	}
	defer conn.Close()
	datagram := binary.BigEndian.AppendUint64(nil, number)
	if conn.SetDeadline(time.Now().Add(flowPatience)) != nil {
		return false
	}
	if _, err := conn.Write(datagram); err != nil {
		return false
	}
	answer := make([]byte, 1+len(datagram)) // the backend's number comes first
	n, err := conn.Read(answer)
	return err == nil && n == len(answer) && bytes.Equal(answer[1:], datagram)
}

// between returns how many flows were begun in that time, how many of them were not answered, and
// when the last of the unanswered was begun. It waits until all of that is known.
func (f *newFlows) between(from, to time.Time) (flows, lost int, last time.Time) {
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	for _, flow := range begun {
		if flow.at.Before(from) || flow.at.After(to) {
			continue
		}
		<-flow.done
		flows++
		if !flow.answered {
			lost, last = lost+1, flow.at
		}
	}
	return flows, lost, last
}
