package program

import (
	"fmt"
	"net/netip"

	"weir.io/weir/bench/track"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/traffic"
)

// backends is how many each way has.
const backends = 10

// Where full NAT takes its source addresses from.
var snat4, snat6 = netip.MustParseAddr("10.1.255.2"), netip.MustParseAddr("fd00:1::1:2")

// connect makes a director with one cable: packets come in and leave there. Its neighbors are
// configured, because none of them exists.
func connect(lab *netlab.Lab, version string, ipv6 bool, queues int) (*netlab.Link, error) {
	name := version + "director" + map[bool]string{false: "4", true: "6"}[ipv6]
	director := lab.Host(name)
	cable := lab.Link(lab.Host("client-of-"+name), director, netlab.LinkOptions{XDP: true, Queues: queues,
		B: []string{"10.1.255.1/16", "fd00:1::1:1/64"}})
	for n := range backends * (len(Ways) + len(Handing)) {
		for _, six := range []bool{false, true} {
			director.Neighbor(cable.B.Name, traffic.Backend(n, six).String(), traffic.BackendMAC(n))
		}
	}
	return cable, lab.Err()
}

// config has a service for each of these ways, in that order, and leaves defaults out.
func config(of traffic.Traffic, ways []track.Subject) model.Config {
	c := model.Config{Director: model.Director{Interfaces: []string{"eth0"}, SNAT: model.SNAT{Addresses: []netip.Addr{snat4, snat6}}}}
	for n, way := range ways {
		c.Services = append(c.Services, way.Service(of, n, n*backends, (n+1)*backends))
	}
	return c
}

// frames returns a packet of each way.
func frames(cable *netlab.Link, of traffic.Traffic) ([][]byte, error) {
	source, err := traffic.NewSource(cable.A, cable.B.MAC, of, 0)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	all := make([][]byte, of.Flows)
	for n := range all {
		if all[n], err = source.Frame(); err != nil {
			return nil, fmt.Errorf("packet %d: %w", n, err)
		}
	}
	return all, nil
}
