package nic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weir.io/weir/internal/datapath"
	"weir.io/weir/internal/device"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/steering"
)

// program stands for the director's: it counts the frames that come, and remembers what it is told.
type program struct {
	*card
	socket int
	queues []datapath.SteeredQueue
	told   []datapath.SteeredFlow
}

func (p *program) Steer(queues []datapath.SteeredQueue, flows []datapath.SteeredFlow) ([]datapath.SteeredFlow, error) {
	p.queues, p.told = queues, flows
	return nil, nil
}

// SteeredFlows returns the flows that it was told of.
func (p *program) SteeredFlows() []datapath.SteeredFlow { return p.told }

// SteeredPackets are counted by no program here.
func (p *program) SteeredPackets() uint64 { return 0 }

// HeavyFlows reads what has come since the last call.
func (p *program) HeavyFlows(float64) (sample []datapath.HeavyFlow, err error) {
	counts := map[datapath.SteeredFlow]uint64{}
	buffer := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(p.socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return nil, err
		}
		decoded := gopacket.NewPacket(buffer[:n], layers.LayerTypeEthernet, gopacket.Default)
		ip, isIP := decoded.NetworkLayer().(*layers.IPv4)
		header, isTCP := decoded.TransportLayer().(*layers.TCP)
		if !isIP || !isTCP {
			continue
		}
		source, _ := netip.AddrFromSlice(ip.SrcIP)
		counts[steeredFlow(netip.AddrPortFrom(source, uint16(header.SrcPort)))]++
	}
	for f, packets := range counts {
		sample = append(sample, datapath.HeavyFlow{SteeredFlow: f, Packets: packets})
	}
	return sample, nil
}

var vip = netip.MustParseAddrPort("203.0.113.10:80")

func steeredFlow(client netip.AddrPort) datapath.SteeredFlow {
	return datapath.SteeredFlow{Client: client, Service: model.ServiceID{VIP: vip.Addr(), Protocol: model.TCP, Port: model.PortRange{First: vip.Port(), Last: vip.Port()}}}
}

// client is a flow of the service: its number is the last one of its address.
func client(number int) device.RuleFlow {
	return tcp(fmt.Sprintf("192.0.2.%d:1111", number), vip.String())
}

// director is a controller with one NIC, and a clock that each step sets a second further.
type director struct {
	*program
	*steering.Controller
	wanted steering.Wanted
	now    time.Time
}

func newDirector(c *card) *director {
	d := &director{program: &program{card: c, socket: c.open(unix.ETH_P_IP)}, now: time.Now()}
	d.wanted = steering.Wanted{Flows: 64, Packets: 5, Links: []steering.Link{{Name: c.name, Index: c.index, NIC: device.NIC(c.name), Queues: []uint32{1}}}}
	d.begin(nil)
	return d
}

// begin has another process go on, which finds these queues kept.
func (d *director) begin(kept map[int][]uint32) {
	d.Controller = steering.New(steering.Deps{Datapath: d.program, Wanted: func() steering.Wanted { return d.wanted }, Kept: kept, LinkOf: steering.ByIndex})
}

// step returns what does not run after a step.
func (d *director) step() string {
	d.now = d.now.Add(time.Second)
	d.Step(d.now)
	status := d.Status()
	if status == nil || len(status.Interfaces) == 0 {
		return ""
	}
	return status.Problem + status.Interfaces[0].Problem
}

func (d *director) wantStep() {
	d.Helper()
	if problem := d.step(); problem != "" {
		d.Fatal(problem)
	}
}

// steers compares the clients whose flows have rules.
func (d *director) steers(numbers ...int) {
	d.Helper()
	var want, told []netip.AddrPort
	for _, number := range numbers {
		want = append(want, client(number).Source)
	}
	for _, f := range d.told {
		told = append(told, f.Client)
	}
	slices.SortFunc(told, netip.AddrPort.Compare)
	if !slices.Equal(told, want) {
		d.Errorf("the program is told that flows of %v have rules, want %v", told, want)
	}
	if len(want) > 0 && (len(d.queues) != 1 || d.queues[0] != datapath.SteeredQueue{Interface: d.index, Queue: 1, Service: steeredFlow(vip).Service}) {
		d.Errorf("the program is told of queues %+v", d.queues)
	}
}

// The controller leads the flows with the most frames to their queue by a real NIC's rules, keeps to the room
// that there is, leaves another user's rule alone, and takes its rules out when flows have ended.
func TestGEMSteersFlows(t *testing.T) {
	c := gem(t)
	// Where the controller would begin.
	c.insert(device.Rule{Flow: client(99), Queue: 0, Location: 3})
	d := newDirector(c)
	d.wantStep()
	d.steers()
	for i, times := range []int{40, 30, 50, 20} {
		c.comesBy(0, times, client(i+1))
	}
	d.wantStep()
	d.steers(1, 2, 3) // there was room for three
	c.wantTable(0, 1, 2, 3)
	for i, times := range []int{40, 30, 50} {
		c.comesBy(1, times, client(i+1))
	}
	c.comesBy(0, 20, client(4))
	c.comesBy(0, 2, client(99))
	d.wantStep()

	// Somebody deletes a rule.
	c.delete(1)
	d.wantStep()
	c.wantTable(0, 1, 2, 3)
	for i := range 3 {
		c.comesBy(1, 10, client(i+1))
	}

	// A flow comes that has more than twice the frames of another one.
	c.comesBy(0, 200, client(5))
	d.wantStep()
	d.wantStep()
	c.wantTable(0, 1, 2, 3)
	c.comesBy(1, 10, client(5))
	c.comesBy(0, 2, client(99))

	// All flows end. What is left is the other user's.
	for range 12 {
		d.wantStep()
	}
	d.steers()
	c.wantTable(3)
	for i := range 5 {
		c.comesBy(0, 3, client(i+1))
	}
	c.delete(3)
}

// The next process goes on with the rules of the one before, and rules go with steering.
func TestGEMLosesRules(t *testing.T) {
	c := gem(t)
	d := newDirector(c)
	d.wantStep()
	c.comesBy(0, 40, client(1))
	d.wantStep()
	c.comesBy(1, 40, client(1))
	c.wantTable(3)

	d.begin(map[int][]uint32{c.index: {1}})
	d.wantStep()
	c.wantTable(3)
	c.comesBy(1, 40, client(1))
	d.wantStep()
	c.wantTable(3)

	// A director that knows of no flow takes the rules out.
	d.told = nil
	d.begin(map[int][]uint32{c.index: {1}})
	d.wantStep()
	c.wantTable()
	c.comesBy(0, 40, client(1))
	d.wantStep()
	c.wantTable(3)

	d.wanted = steering.Wanted{}
	d.wantStep()
	c.wantTable()
	c.comesBy(0, 5, client(1))
}

// A flow table that somebody switches off is switched on again.
func TestGEMSteersAgain(t *testing.T) {
	c := gem(t)
	d := newDirector(c)
	d.wantStep()
	c.comesBy(0, 40, client(1))
	d.wantStep()
	c.comesBy(1, 40, client(1))
	c.switchOff()
	c.comesBy(0, 40, client(1))
	d.wantStep()
	c.comesBy(1, 5, client(1))
	d.steers(1)
}
