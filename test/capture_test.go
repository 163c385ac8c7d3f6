package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/vishvananda/netlink"

	"weir.io/weir/lab/netlab"
)

// A capture's file has each packet of a service as it came and as it left, with its verdict, and
// other programs can read it. However a capture ends, the director's own program comes back without
// losing a packet: when weir capture is killed, and when weir run is killed and the next one takes
// over.
//
//	client --- router --- switch --- director
//	                             --- backend1, backend2
func TestCapture(t *testing.T) {
	t.Parallel()
	w := way{mode: "nat"}
	l := newLab(t, size{backends: 2})
	director := l.start(w.service("tcp", "7", everyBackend(2)), w.service("udp", "7", everyBackend(2)))
	for i, b := range l.backends {
		echo(t, b, w.at(i+1, 7))
		echoStream(t, b, w.at(i+1, 7))
	}
	director.runs("director")

	c := director.startCapture("--service", "nat-4-tcp-7")
	director.runs("capture")
	ports := l.ping(netip.AddrPortFrom(w.vip(), 7), 3)
	waitFor(t, "the connections in the capture", func() bool {
		ended := map[uint16]int{}
		for _, p := range c.packets() {
			if p.in && p.tcp.FIN {
				ended[p.port]++
			}
		}
		for _, port := range ports {
			if ended[port] < 2 { // both sides have ended
				return false
			}
		}
		return true
	})
	c.end(os.Interrupt)
	if c.code() != 0 || !strings.Contains(c.said(), "packets (interrupted)") {
		t.Errorf("an interrupted capture ends with %d and says\n%s", c.code(), c.said())
	}
	director.runs("director")
	c.wantVerdicts(w, ports)
	c.wantReadable()

	load := startLoad(t, l, w)
	c = director.startCapture()
	director.runs("capture")
	load.more(100)
	c.end(os.Kill)
	director.runs("director")
	load.more(100)

	c = director.startCapture("--drops")
	director.runs("capture")
	director.end(syscall.SIGKILL)
	load.more(100)
	director.runs("capture")
	<-c.ended
	if c.code() != 1 || !strings.Contains(c.said(), "the connection to the director has ended, and the capture with it") {
		t.Errorf("a capture whose director is killed ends with %d and says\n%s", c.code(), c.said())
	}
	if out, _ := tryOn(t, l.director, weir, "doctor", "--role", "director", "-c", director.config, "--bpffs", director.bpffs); !strings.Contains(out, "a capture runs, or ran when its process was killed") {
		t.Errorf("doctor says of what a killed director has left:\n%s", out)
	}
	director.start()
	director.ready()
	director.runs("director")
	load.more(100)
	load.wantUndisturbed()
}

// runs waits until the director's interface has the XDP program of that name.
func (d *daemon) runs(name string) {
	d.t.Helper()
	waitFor(d.t, "the program "+name+" on the director's interface", func() bool {
		got := ""
		err := d.host.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil || link.Attrs().Xdp == nil || !link.Attrs().Xdp.Attached {
				return err
			}
			program, err := ebpf.NewProgramFromID(ebpf.ProgramID(link.Attrs().Xdp.ProgId))
			if err != nil {
				return nil // the program is gone meanwhile
			}
			defer program.Close()
			info, err := program.Info()
			if err == nil {
				got = info.Name
			}
			return err
		})
		if err != nil {
			d.t.Fatal(err)
		}
		return got == name
	})
}

// ping opens connections, asks something over each and closes them. It returns their ports.
func (l *lab) ping(at netip.AddrPort, n int) (ports []uint16) {
	l.t.Helper()
	for range n {
		conn, err := l.client.DialContext(l.t.Context(), "tcp", at.String())
		if err != nil {
			l.t.Fatal(err)
		}
		_, sent := conn.Write([]byte("ping"))
		_, received := io.ReadFull(conn, make([]byte, 4))
		if err := errors.Join(sent, received, conn.Close()); err != nil {
			l.t.Fatal(err)
		}
		ports = append(ports, conn.LocalAddr().(*net.TCPAddr).AddrPort().Port())
	}
	return ports
}

// captureProcess is weir capture, which writes a file.
type captureProcess struct {
	t     *testing.T
	file  string
	cmd   *netlab.Command
	ended chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
}

// Write takes the process's output.
func (c *captureProcess) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(text)
}

func (c *captureProcess) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// startCapture starts weir capture, and waits until it captures.
func (d *daemon) startCapture(filter ...string) *captureProcess {
	d.t.Helper()
	c := &captureProcess{t: d.t, file: filepath.Join(d.host.Dir(), "capture.pcapng"), ended: make(chan struct{})}
	c.cmd = d.host.Command(context.Background(), weir, append([]string{"capture", "--socket", d.socket, "-w", c.file}, filter...)...)
	c.cmd.Stderr = c
	if err := c.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait() // the process's state says how it ended
		close(c.ended)
	}()
	waitFor(d.t, "weir capture to begin", func() bool { return strings.Contains(c.said(), "capturing on") })
	return c
}

func (c *captureProcess) end(signal os.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(signal); err != nil {
		c.t.Fatalf("signal weir capture: %v; it said\n%s", err, c.said())
	}
	<-c.ended
}

func (c *captureProcess) code() int { return c.cmd.ProcessState.ExitCode() }

// filed is a packet in the file.
type filed struct {
	in      bool
	id      uint64
	tcp     layers.TCP
	to      netip.Addr
	port    uint16 // the client's
	comment string
	options pcapgo.NgPacketOptions
}

// packets reads what the file has so far.
func (c *captureProcess) packets() (list []filed) {
	c.t.Helper()
	text, err := os.ReadFile(c.file)
	if err != nil {
		return nil // not yet there
	}
	reader, err := pcapgo.NewNgReader(bytes.NewReader(text), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return nil // its header is not complete
	}
	for {
		frame, _, options, err := reader.ReadPacketDataWithOptions()
		if err != nil {
			return list
		}
		packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		ip, is4 := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		tcp, isTCP := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !is4 || !isTCP || len(options.Comments) != 1 || options.PacketID == nil || options.Flags == nil {
			c.t.Fatalf("there is %v in the file, with %+v", packet, options)
		}
		to, _ := netip.AddrFromSlice(ip.DstIP)
		p := filed{options.Flags.Direction == pcapgo.NgEpbFlagDirectionInbound, *options.PacketID, *tcp, to, uint16(tcp.SrcPort), options.Comments[0], options}
		if tcp.DstPort != 7 {
			p.port = uint16(tcp.DstPort)
		}
		list = append(list, p)
	}
}

// wantVerdicts checks that the file says of each packet that it was forwarded, where to, and how it
// left.
func (c *captureProcess) wantVerdicts(w way, ports []uint16) {
	c.t.Helper()
	opened := map[uint16]bool{}
	list := c.packets()
	for i, p := range list {
		if !p.in {
			continue
		}
		reply := p.tcp.SrcPort == 7
		reason := map[bool]string{false: "forward_nat", true: "forward_reply"}[reply]
		number := 1
		if strings.Contains(p.comment, "backend backend2 ") {
			number = 2
		}
		backend := w.address(number)
		want := fmt.Sprintf("in: %s, service nat-4-tcp-7, backend backend%d %v", reason, number, backend)
		if !strings.HasPrefix(p.comment, want) || !strings.HasSuffix(p.comment, ", leaves by eth0") {
			c.t.Errorf("of a packet the file says %q, want %q", p.comment, want)
		}
		if v := p.options.Verdicts; len(v) != 1 || v[0].Type != pcapgo.NgEpbVerdictTypeLinuxeBPFXDP || v[0].Data[0] != 3 { // XDP_TX
			c.t.Errorf("%s: the verdict is %v", p.comment, v)
		}
		if i+1 == len(list) || list[i+1].in || list[i+1].id != p.id {
			c.t.Fatalf("%s: behind it is not how it left", p.comment)
		}
		if out := list[i+1]; !reply && (out.to != backend || p.to != w.vip()) || reply && out.to != p.to || out.tcp.Seq != p.tcp.Seq {
			c.t.Errorf("%s: it came for %v and left for %v", p.comment, p.to, out.to)
		}
		if p.tcp.SYN && !p.tcp.ACK {
			opened[p.port] = true
			if !strings.Contains(p.comment, ", slot ") {
				c.t.Errorf("%s: no slot", p.comment)
			}
		}
	}
	for _, port := range ports {
		if !opened[port] {
			c.t.Errorf("the SYN of the connection from port %d is not in the file", port)
		}
	}
}

// wantReadable checks that other programs read the file: all of its packets, with comments and
// verdicts.
func (c *captureProcess) wantReadable() {
	c.t.Helper()
	want := len(c.packets())
	for _, command := range [][]string{
		{"tcpdump", "-n", "-r", c.file},
		{"tshark", "-n", "-r", c.file, "-Y", "frame.comment contains \"service nat-4-tcp-7\" && frame.verdict.ebpf_xdp || frame.comment contains \"out: \"", "-T", "fields", "-e", "frame.comment"},
	} {
		out, err := exec.Command(command[0], command[1:]...).Output()
		if lines := strings.Count(string(out), "\n"); err != nil || lines != want || want == 0 {
			c.t.Errorf("%s reads %d of %d packets, error %v:\n%s", command[0], lines, want, err, out)
		}
	}
}
