package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"weir.io/weir/internal/model"
)

// pcapng writes captured packets to a file of that format: each as it came, and once more as
// it left, with one packet ID, and with what became of it as a comment.
type pcapng struct {
	path string // of the file; empty: w is there
	w    io.Writer
	snap int

	file       *os.File
	writer     *pcapgo.NgWriter
	interfaces map[string]int
}

// Other users must not read what clients send to services.
const captureMode = 0o600

func (f *pcapng) start(interfaces []string) (err error) {
	if f.path != "" {
		if f.file, err = os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, captureMode); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
		f.w = f.file
	}
	if len(interfaces) == 0 {
		interfaces = []string{"unknown"} // there is none without
	}
	f.interfaces = map[string]int{interfaces[0]: 0}
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "weir " + version}}
	if f.writer, err = pcapgo.NewNgWriterInterface(f.w, f.describe(interfaces[0]), options); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	for _, name := range interfaces[1:] {
		if _, err := f.number(name); err != nil {
			return err
		}
	}
	return f.flush()
}

func (f *pcapng) describe(name string) pcapgo.NgInterface {
	return pcapgo.NgInterface{Name: name, OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet, TimestampResolution: 9, SnapLength: uint32(f.snap)}
}

// number is the number of an interface in the file.
func (f *pcapng) number(name string) (int, error) {
	if name == "" {
		name = "unknown"
	}
	if n, known := f.interfaces[name]; known {
		return n, nil
	}
	n, err := f.writer.AddInterface(f.describe(name))
	if err != nil {
		return 0, fmt.Errorf("write capture: %w", err)
	}
	f.interfaces[name] = n
	return n, nil
}

func (f *pcapng) packet(p *model.CapturedPacket) error {
	verdict := pcapgo.NgEpbVerdict{Type: pcapgo.NgEpbVerdictTypeLinuxeBPFXDP, Data: binary.LittleEndian.AppendUint64(nil, uint64(p.Action))}
	if err := f.write(p, p.Interface, p.In, p.InLength, pcapgo.NgPacketOptions{Comments: []string{"in: " + p.Text()}, PacketID: &p.Number,
		Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}, Verdicts: []pcapgo.NgEpbVerdict{verdict}}); err != nil {
		return err
	}
	if len(p.Out) > 0 {
		// A changed packet for the kernel stays on the interface by which it came.
		by := p.Leaves
		if by == "" {
			by = p.Interface
		}
		if err := f.write(p, by, p.Out, p.OutLength, pcapgo.NgPacketOptions{Comments: []string{"out: " + p.Text()}, PacketID: &p.Number,
			Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}}); err != nil {
			return err
		}
	}
	return f.flush()
}

func (f *pcapng) write(p *model.CapturedPacket, by string, frame []byte, length int, options pcapgo.NgPacketOptions) error {
	number, err := f.number(by)
	if err != nil {
		return err
	}
	info := gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(frame), Length: length, InterfaceIndex: number}
	if err := f.writer.WritePacketWithOptions(info, frame, options); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

// flush writes whole packets: a killed process leaves a readable file.
func (f *pcapng) flush() error {
	if err := f.writer.Flush(); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}

func (f *pcapng) end(counts model.CaptureCounts) error {
	if f.writer == nil {
		return nil // it has not begun
	}
	stats := pcapgo.NgInterfaceStatistics{LastUpdate: time.Now(), PacketsReceived: counts.Matched, PacketsDropped: counts.Limited + counts.Lost,
		Comment: "of all interfaces together; dropped: left out of the capture, by weir's rate or as not read in time"}
	if err := f.writer.WriteInterfaceStats(0, stats); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	if err := f.flush(); err != nil || f.file == nil {
		return err
	}
	if err := f.file.Close(); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return nil
}
