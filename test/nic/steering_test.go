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

// table is a NIC's flow table, by its interface's name.
type table string

func (t table) Table() (device.RuleTable, error) { return device.RulesOf(string(t)) }
func (t table) Rule(location uint32) (device.Rule, bool, error) {
	return device.RuleAt(string(t), location)
}
func (t table) Insert(r device.Rule, chooses bool) (uint32, error) {
	return device.InsertRule(string(t), r, chooses)
}
func (t table) Delete(location uint32) error { return device.DeleteRule(string(t), location) }

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

// HeavyFlows reads what has come since the last call.
func (p *program) HeavyFlows() (sample []datapath.HeavyFlow, err error) {
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
	now time.Time
}

func newDirector(c *card) *director {
	p := &program{card: c, socket: c.open(unix.ETH_P_IP)}
	d := &director{p, steering.New(steering.Deps{Datapath: p, Limits: steering.Limits{Flows: 64, PacketsPerSecond: 5}}), time.Now()}
	d.SetLinks([]steering.Link{{Name: c.name, Index: c.index, NIC: table(c.name), Queues: []uint32{1}}})
	return d
}

func (d *director) step() error {
	d.now = d.now.Add(time.Second)
	return d.Step(d.now)
}

func (d *director) wantStep() {
	d.Helper()
	if err := d.step(); err != nil {
		d.Fatal(err)
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

// Rules that an earlier process has left go, and so do those of an interface that steers no longer.
func TestGEMLosesRules(t *testing.T) {
	c := gem(t)
	first := newDirector(c)
	first.wantStep()
	c.comesBy(0, 40, client(1))
	first.wantStep()
	c.comesBy(1, 40, client(1))
	c.wantTable(3)

	second := newDirector(c)
	second.wantStep()
	c.wantTable()
	c.comesBy(0, 40, client(1))
	second.wantStep()
	c.wantTable(3)
	c.comesBy(1, 5, client(1))

	second.SetLinks(nil)
	second.wantStep()
	c.wantTable()
	c.comesBy(0, 5, client(1))
}

// A flow table that is switched off is said to be, and used again when it is on.
func TestGEMSteersAgain(t *testing.T) {
	c := gem(t)
	d := newDirector(c)
	d.wantStep()
	c.comesBy(0, 40, client(1))
	d.wantStep()
	c.comesBy(1, 40, client(1))
	c.switchOff()
	wantError(t, d.step(), device.ErrRulesOff, c.name+" steers no flows", "ethtool -K "+c.name+" ntuple on")
	d.steers()
	c.comesBy(0, 40, client(1))
	if err := device.SwitchRulesOn(c.name); err != nil {
		t.Fatal(err)
	}
	d.wantStep()
	d.steers(1)
	c.comesBy(1, 5, client(1))
}
