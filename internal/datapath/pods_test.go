package datapath

import (
	"fmt"
	"slices"
	"testing"

	"weir.io/weir/internal/datapath/abi"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/packet"
)

// testPods: what goes to a pod, of another host and of the director's own. There the packet
// goes up, for the agent, with the MAC addresses that it came with.
func testPods(t *testing.T) {
	w := &testWorld{}
	var rows []row
	for _, over4 := range []bool{true, false} {
		for _, vip4 := range []bool{true, false} {
			for _, mode := range []model.Mode{model.IPIP, model.GUE} {
				for _, local := range []bool{false, true} {
					n := len(w.services)
					s := scenario{client: clientOf(vip4), testService: w.add(testService{vip: vipAddress(vip4, n), protocol: model.TCP,
						port: singlePort(servicePort), salt: uint64(n), backends: []testBackend{{mode: mode, address: backendAddress(over4, n), pod: 0xabcdef01, local: local}}})}
					name := fmt.Sprintf("%v to vip 4 %v, over 4 %v, own %v", mode, vip4, over4, local)
					to := ip(s.client, s.vip)
					error4 := []packet.Header{ip(s.client, s.vip), packet.ICMPv4Header{Type: 3, Code: 4, Rest: 1400}, packet.Quote(8, ip(s.vip, s.client), packet.TCPHeader{Src: servicePort, Dst: clientPort})}
					if !vip4 {
						error4[1] = packet.ICMPv6Header{Type: 2, Rest: 1400}
					}
					list := []row{
						s.forward(name, s.flow(), 0, s.data(100)...),
						s.forward(name+", SYN", s.flow(), 0, to, packet.TCPHeader{Src: clientPort, Dst: servicePort, Flags: packet.SYN}),
						s.forward(name+", error", s.flow(), 0, error4...),
					}
					list[2].reason = abi.ReasonFORWARD_ICMP_ERROR
					if local {
						for i := range list {
							list[i].action = xdpPass
							list[i].out = slices.Concat(list[i].in[:12], list[i].out[12:])
						}
					}
					rows = append(rows, list...)
				}
			}
		}
	}
	loadTestDirector(t, w).check(t, rows)
}
