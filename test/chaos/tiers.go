package main

import (
	"fmt"
	"net"
	"time"

	"weir.io/weir/internal/model"
	"weir.io/weir/test/chaos/schedule"
)

// checkPort is where backends answer health checks. It is not the port of a service, so that a tier can fail whose connections
// go on: that is what a director sees that is cut off from it.
const checkPort = 7999

// tierCheck is the health check of services whose backends are in tiers. Directors probe at different moments, and switch so.
func tierCheck() *model.HealthCheck {
	return &model.HealthCheck{Kind: model.CheckTCP, Port: checkPort, To: model.CheckAddress,
		Interval: model.Duration(300 * time.Millisecond), Timeout: model.Duration(time.Second), Rise: 1, Fall: 2}
}

// checkServers answer health checks, by backend; nil: its checks fail.
type checkServers struct {
	top       *topology
	listeners []net.Listener
}

func newCheckServers(top *topology) *checkServers {
	return &checkServers{top, make([]net.Listener, len(top.backends))}
}

// fail makes the checks of the first tier fail, or all succeed.
func (c *checkServers) fail(first bool) (err error) {
	for i, b := range c.top.backends {
		l := c.listeners[i]
		switch fails := first && schedule.Tier(i) == 0; {
		case fails && l != nil:
			l.Close() // its error says that it was closed
			c.listeners[i] = nil
		case !fails && l == nil:
			if c.listeners[i], err = b.Host.Listen("tcp4", fmt.Sprint(":", checkPort)); err != nil {
				return fmt.Errorf("answer health checks on %s: %w", b.Name, err)
			}
			go answerChecks(c.listeners[i])
		}
	}
	return nil
}

func answerChecks(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
	}
}

func (c *checkServers) close() {
	for _, l := range c.listeners {
		if l != nil {
			l.Close()
		}
	}
}
