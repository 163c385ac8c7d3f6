package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/explain"
	"weir.io/weir/internal/model"
	"weir.io/weir/internal/store"
)

type explainOptions struct {
	out             output
	conn            connection
	pcap            string
	flags, segment  string
	payload         string
	length          int
	question        model.Question
	set, owner      string
	ownerGiven      bool
	interfaceByName string
}

func newExplain() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain SOURCE[:PORT] DESTINATION[:PORT]/PROTOCOL | explain --pcap FILE",
		Short: "Say what a director would do with a packet, and why",
		Long: "explain runs the director's own program on a packet, beside copies of what it remembers:\n" +
			"nothing is counted, remembered or sent. It names every decision, and shows the packet\n" +
			"as it would leave. The protocol is tcp, udp, sctp or icmp, which is an echo request. With\n" +
			"--pcap it is asked about each packet of a capture file instead.",
		Example: "  weir explain 198.51.100.7:5555 203.0.113.10:443/tcp --flags syn\n" +
			"  weir explain 2001:db8::7 2001:db8:1::10/icmp",
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.out.check(); err != nil {
				return err
			}
			questions, left, err := o.questions(args)
			if err != nil {
				return err
			}
			if left != (leftOut{}) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", o.pcap, left)
			}
			if err := o.suppose(cmd, questions); err != nil {
				return err
			}
			client, err := o.conn.client()
			if err != nil {
				return err
			}
			answers, err := o.ask(cmd.Context(), client, questions)
			if err != nil {
				return err
			}
			if o.pcap == "" {
				return o.out.write(cmd.OutOrStdout(), answers[0], func(t *table) { explanationTable(t, &answers[0]) })
			}
			return o.out.write(cmd.OutOrStdout(), answers, func(t *table) { explanationsTable(t, questions, answers) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.flags, "flags", "", "TCP `flags`, as syn or fin,ack (default ack)")
	flags.StringVar(&o.interfaceByName, "interface", "", "`interface` that the packet comes in by (default: the one that leads to the source, or the director's first)")
	flags.StringVar(&o.segment, "segment", "", "`segment` of the packet: vlan:100, vlan:100.200, vxlan:5001 or geneve:5001")
	flags.Uint8Var(&o.question.TTL, "ttl", explain.DefaultTTL, "TTL or hop limit")
	flags.StringVar(&o.payload, "payload", "", "payload in `hex`, such as a QUIC header")
	flags.IntVar(&o.length, "length", 0, "so many `bytes` of payload, zeros behind --payload")
	flags.StringVar(&o.pcap, "pcap", "", "ask about the packets in this `file`, pcap or pcapng, of Ethernet")
	flags.StringVar(&o.set, "set", "", "answer as if the services in this `file` had been applied (see weir apply)")
	flags.StringVar(&o.owner, "owner", store.OwnerCLI, "with --set: `name` of the set's owner")
	o.out.add(cmd)
	o.conn.add(cmd)
	o.conn.completeOwnerFlag(cmd)
	return cmd
}

// ask asks about each packet.
func (o *explainOptions) ask(ctx context.Context, client *api.Client, questions []question) ([]model.Explanation, error) {
	var asked atomic.Int64
	defer o.conn.progress.start(func() string { return fmt.Sprintf("asking about packet %d of %d", asked.Load(), len(questions)) })()
	answers := make([]model.Explanation, 0, len(questions))
	for _, q := range questions {
		asked.Add(1)
		if q.cut != "" {
			continue
		}
		answer, err := client.Explain(ctx, q.Question)
		if p := (*api.Problem)(nil); q.With != nil && !o.ownerGiven && errors.As(err, &p) && p.Owner != "" {
			q.With.Owner = p.Owner // see asOwner
			answer, err = client.Explain(ctx, q.Question)
		}
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// mostLength is the longest payload that a question may have.
const mostLength = 9000

// questions returns the questions: about one packet, or about those of a file.
func (o *explainOptions) questions(args []string) ([]question, leftOut, error) {
	if o.pcap != "" {
		if len(args) > 0 {
			return nil, leftOut{}, usagef("--pcap has the packets: name no addresses besides")
		}
		return questionsIn(o.pcap, o.interfaceByName)
	}
	q, err := o.single(args)
	return []question{{Question: q}}, leftOut{}, err
}

// single returns the question about one packet.
func (o *explainOptions) single(args []string) (none model.Question, err error) {
	if len(args) != 2 {
		return none, usagef("name the source and the destination (weir explain 198.51.100.7:5555 203.0.113.10:443/tcp), or --pcap")
	}
	q := o.question
	if q.Source, err = explain.Endpoint(args[0]); err != nil {
		return none, usagef("source: %w", err)
	}
	destination, protocol, found := strings.Cut(args[1], "/")
	if !found {
		return none, usagef("destination: %q says no protocol (%s/tcp)", args[1], args[1])
	}
	if q.Destination, err = explain.Endpoint(destination); err != nil {
		return none, usagef("destination: %w", err)
	}
	if q.Payload, err = hex.DecodeString(o.payload); err != nil {
		return none, usagef("--payload: %w", err)
	}
	if o.length < 0 || o.length > mostLength {
		return none, usagef("--length %d: 0 to %d", o.length, mostLength)
	}
	if missing := o.length - len(q.Payload); missing > 0 {
		q.Payload = append(q.Payload, make([]byte, missing)...)
	}
	if err := q.Segment.UnmarshalText([]byte(o.segment)); err != nil {
		return none, usagef("--segment: %w", err)
	}
	q.Protocol, q.Interface = protocol, o.interfaceByName
	if o.flags != "" {
		q.Flags = strings.Split(o.flags, ",")
	}
	return q, nil
}

// suppose adds the supposed set.
func (o *explainOptions) suppose(cmd *cobra.Command, questions []question) error {
	if o.set == "" {
		return nil
	}
	if err := model.CheckOwner(o.owner); err != nil {
		return usageError{err}
	}
	o.ownerGiven = cmd.Flags().Changed("owner")
	services, _, err := loadSet(cmd, o.set)
	if err != nil {
		return err
	}
	for i := range questions {
		questions[i].With = &model.QuestionSet{Owner: o.owner, Services: services}
	}
	return nil
}

// mostPackets bounds how much of a file is read.
const mostPackets = 10_000

// question is one about a packet, perhaps of a file.
type question struct {
	model.Question
	number int    // of the packet in the file; the first is 1
	cut    string // why it is not asked; empty: it is
}

// leftOut is what is not asked about the packets of a file.
type leftOut struct {
	outbound int  // packets that left, so that no director gets them
	cut      int  // packets of which the file has not all bytes
	longest  int  // of those
	more     bool // the file has packets beyond mostPackets
}

// String says what is left out.
func (l leftOut) String() string {
	var parts []string
	if l.outbound > 0 {
		parts = append(parts, "left out: "+model.Count(l.outbound, "packet")+" on the way out, which no director gets")
	}
	if l.cut > 0 {
		fix := fmt.Sprintf("capture with --snap %d", l.longest)
		if l.longest > model.MostCaptureSnap {
			fix = fmt.Sprintf("capture with --snap %d, which is enough for those that are not longer", model.MostCaptureSnap)
		}
		parts = append(parts, fmt.Sprintf("not asked about: %s, cut, of up to %d bytes: %s", model.Count(l.cut, "packet"), l.longest, fix))
	}
	if l.more {
		parts = append(parts, fmt.Sprintf("asked about: the first %d, and the file has more", mostPackets))
	}
	return strings.Join(parts, "; ")
}

// questionsIn returns questions about the packets of a capture file that come in, and what it has besides.
func questionsIn(path, by string) (questions []question, left leftOut, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, left, fmt.Errorf("open capture: %w", err)
	}
	defer file.Close()
	packets, err := openCapture(file)
	if err != nil {
		return nil, left, fmt.Errorf("%s: %w", path, err)
	}
	for number := 1; ; number++ {
		p, err := packets()
		if errors.Is(err, io.EOF) {
			break
		}
		if left.more = len(questions) == mostPackets; left.more {
			break
		}
		if err != nil {
			return nil, left, fmt.Errorf("%s: packet %d: %w", path, number, err)
		}
		q := question{Question: model.Question{Frame: p.frame, Interface: by}, number: number}
		switch {
		case p.outbound:
			left.outbound++
			continue
		case p.length > len(p.frame):
			q.cut = fmt.Sprintf("cut at %d of %d bytes", len(p.frame), p.length)
			left.cut, left.longest = left.cut+1, max(left.longest, p.length)
		}
		questions = append(questions, q)
	}
	switch {
	case len(questions) == 0 && left.outbound > 0:
		return nil, left, fmt.Errorf("%s: has no packets that come in (%s)", path, left)
	case len(questions) == 0:
		return nil, left, fmt.Errorf("%s: has no packets", path)
	case left.cut == len(questions):
		return nil, left, fmt.Errorf("%s: %s", path, left)
	}
	return questions, left, nil
}

// packetOfFile is a packet of a capture file.
type packetOfFile struct {
	frame    []byte
	length   int  // of the whole packet
	outbound bool // it left; the file says so
}

// openCapture reads pcap, or else pcapng.
func openCapture(file io.ReadSeeker) (next func() (packetOfFile, error), err error) {
	if r, err := pcapgo.NewReader(file); err == nil {
		if link := r.LinkType(); link != layers.LinkTypeEthernet {
			return nil, fmt.Errorf("is a capture of %s, not of Ethernet", link)
		}
		return func() (packetOfFile, error) {
			frame, info, err := r.ReadPacketData()
			return packetOfFile{frame: frame, length: info.Length}, err
		}, nil
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return nil, fmt.Errorf("is neither pcap nor pcapng: %w", err)
	}
	if link := r.LinkType(); link != layers.LinkTypeEthernet {
		return nil, fmt.Errorf("is a capture of %s, not of Ethernet", link)
	}
	return func() (packetOfFile, error) {
		frame, info, options, err := r.ReadPacketDataWithOptions()
		outbound := options.Flags != nil && options.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound
		return packetOfFile{frame, info.Length, outbound}, err
	}, nil
}

// explanationTable has a line for each decision.
func explanationTable(t *table, e *model.Explanation) {
	t.row("STEP", "DECISION")
	before := model.Decision("")
	for _, s := range explain.Steps(e) {
		switch {
		case s.Step == model.StepCandidate:
			t.row(" "+string(s.Step), s.Says)
		case s.Step == before:
			t.row(" ", s.Says) // a further header of the packet
		default:
			t.row(s.Step, s.Says)
		}
		before = s.Step
	}
}

// explanationsTable has a line for each packet of a file.
func explanationsTable(t *table, questions []question, all []model.Explanation) {
	t.row("PACKET", "FLOW", "SERVICE", "BACKEND", "CHOSEN", "REASON", "LEAVES")
	for _, q := range questions {
		if q.cut != "" {
			t.row(q.number, "", "", "", "", q.cut, "")
			continue
		}
		e := &all[0]
		all = all[1:]
		var flow, service, backend string
		if e.Flow != nil {
			flow = explain.FlowText(e.Flow)
		}
		if e.Service != nil {
			service = e.Service.Name
		}
		if e.Backend != nil {
			backend = e.Backend.Name
		}
		t.row(q.number, flow, service, backend, e.Chosen, e.Reason, e.Leaves)
	}
}
