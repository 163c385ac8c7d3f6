package health

import (
	"context"
	"net"
	"net/netip"
	"sync"
)

// perFamily is a port of this host for each family, which is taken when it is first needed.
type perFamily struct {
	mu        sync.Mutex
	listeners map[string]net.Listener
}

// of returns the port for packets to an address.
func (p *perFamily) of(to netip.Addr) (uint16, error) {
	network := "tcp6"
	if to.Is4() {
		network = "tcp4"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.listeners[network]
	if l == nil {
		config := net.ListenConfig{Control: takeAnswers, KeepAlive: -1}
		config.SetMultipathTCP(false)
		var err error
		if l, err = config.Listen(context.Background(), network, ":0"); err != nil {
			return 0, err
		}
		if p.listeners == nil {
			p.listeners = map[string]net.Listener{}
		}
		p.listeners[network] = l
	}
	return l.Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

func (p *perFamily) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		_ = l.Close() // there is no peer
	}
	p.listeners = nil
}
