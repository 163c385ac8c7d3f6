package tune

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"weir.io/weir/internal/device"
)

// queues looks at how many queues an interface has, against the CPUs.
func (s *survey) queues(n *nic) {
	now, most, err := n.Channels()
	if err == nil && n.queues == 0 {
		n.queues = now.Receive + now.Combined
		n.wanted = n.queues
	}
	if n.queues == 0 {
		return // a tunnel's interface, for example, has none that can be told
	}
	cpus := uint32(len(s.cpus.usable()))
	p := Part{Kind: Queues, Interface: n.name, Text: count(int(n.queues), "receive queue")}
	if err == nil && most.Combined == 0 && now.Send != now.Receive {
		p.Text += " and " + count(int(now.Send), "send queue")
	}
	p.Text += " for " + count(int(cpus), "CPU")
	if given := s.options.FanOut; len(given) > 0 {
		p.Text += fmt.Sprintf(", beside %s that get packets by fan-out", count(len(given), "CPU"))
	}
	if err != nil {
		now = device.Channels{Combined: n.queues} // it takes no other number
	}
	enough := cpus // and those that rules lead to
	for _, q := range s.options.Reserved[n.name] {
		enough = max(enough, q+1)
	}
	if n.sendsOfQueues() && (len(s.nics) > 1 || len(s.options.FanOut) > 0) {
		for _, c := range append(s.cpus.usable().numbers(), s.options.FanOut...) {
			enough = max(enough, c+1) // packets come there, and leave by this interface
		}
	}
	want := now
	switch {
	case err != nil:
	case most.Combined > 0:
		want.Combined = min(enough, most.Combined)
	default:
		want.Receive, want.Send = min(enough, most.Receive), min(enough, most.Send)
	}
	n.wanted = want.Receive + want.Combined
	if err == nil {
		p.Settings = []Setting{n.channels(now, want, most)}
	}
	p.Amiss = want != now
	if !p.Amiss && n.wanted < enough {
		p.Text += ", and it can have no more"
		if n.real {
			p.Amiss, p.Fix = true, "director.fan-out gives packets of expensive services to other CPUs; a NIC with more queues shares packets better; a virtual machine's is given them by its host (QEMU: queues=, with mq=on)"
		}
	}
	s.add(p)
}

// channels is the setting of an interface's queues.
func (n *nic) channels(now, want, most device.Channels) Setting {
	return Setting{Kind: Queues, Interface: n.name, Identity: n.identity, link: n, Now: channelsText(now, most), Want: channelsText(want, most),
		read: func() (string, error) {
			now, most, err := n.Channels()
			return channelsText(now, most), err
		},
		write: func(text string) error {
			to, _, err := n.Channels()
			if err != nil {
				return err
			}
			if err := parseNumbers(text, map[string]*uint32{"combined": &to.Combined, "rx": &to.Receive, "tx": &to.Send}); err != nil {
				return err
			}
			return n.SetChannels(to)
		},
		command: func(text string) string { return "ethtool -L " + n.name + " " + text },
	}
}

// channelsText is what ethtool -L takes.
func channelsText(c, most device.Channels) string {
	if most.Combined > 0 {
		return fmt.Sprintf("combined %d", c.Combined)
	}
	return fmt.Sprintf("rx %d tx %d", c.Receive, c.Send)
}

// parseNumbers reads words with numbers: rx 4 tx 4.
func parseNumbers(text string, into map[string]*uint32) error {
	words := strings.Fields(text)
	for i := 0; i < len(words); i += 2 {
		to := into[words[i]]
		if to == nil || i+1 == len(words) {
			return fmt.Errorf("%q has no number that is known", text)
		}
		value, err := strconv.ParseUint(words[i+1], 10, 32)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		*to = uint32(value)
	}
	return nil
}

// rings looks at how many packets queues hold.
func (s *survey) rings(n *nic) {
	now, most, err := n.Rings()
	if err != nil || most.Receive == 0 {
		return // a virtual interface has none
	}
	text := func(r device.Rings) string { return fmt.Sprintf("rx %d tx %d", r.Receive, r.Send) }
	setting := Setting{Kind: Rings, Interface: n.name, Identity: n.identity, link: n, Now: text(now), Want: text(most)}
	setting.read = func() (string, error) {
		now, _, err := n.Rings()
		return text(now), err
	}
	setting.write = func(value string) error {
		var to device.Rings
		if err := parseNumbers(value, map[string]*uint32{"rx": &to.Receive, "tx": &to.Send}); err != nil {
			return err
		}
		return n.SetRings(to)
	}
	setting.command = func(value string) string { return "ethtool -G " + n.name + " " + value }
	s.add(Part{Kind: Rings, Interface: n.name, Settings: []Setting{setting}, Amiss: setting.Now != setting.Want,
		Text: fmt.Sprintf("queues hold %d packets that come, of at most %d, and %d that leave, of at most %d", now.Receive, most.Receive, now.Send, most.Send)})
}

// rss looks at how packets without a rule are spread over the queues.
func (s *survey) rss(n *nic) {
	table, err := n.Indirection()
	if err != nil || len(table) == 0 || n.queues < 2 && n.wanted < 2 {
		return
	}
	// Queues that are to go must not be in it, and those that are to come cannot be.
	var use []uint32
	for q := range min(n.queues, n.wanted) {
		if !slices.Contains(s.options.Reserved[n.name], q) {
			use = append(use, q)
		}
	}
	p := Part{Kind: RSS, Interface: n.name}
	setting := Setting{Kind: RSS, Interface: n.name, Identity: n.identity, Now: tableText(table), Want: tableText(table)}
	switch {
	case len(use) == 0:
		p.Amiss, p.Fix = true, "leave a queue out of director.steering.queues"
		p.Text = "all queues are for flows with a rule: RSS has none left"
	case isEven(table, use):
		p.Text = "RSS uses queues " + queuesText(use) + " evenly"
	default:
		p.Amiss = true
		p.Text = "RSS uses queues " + queuesText(table) + ", and not queues " + queuesText(use) + " evenly"
		setting.Want = tableText(inTurn(len(table), use))
	}
	setting.read = func() (string, error) {
		table, err := n.Indirection()
		return tableText(table), err
	}
	setting.write = func(text string) error {
		table, err := parseTable(text)
		if err != nil {
			return err
		}
		if queues, err := n.ReceiveQueues(); err == nil && slices.Equal(table, inTurn(len(table), upTo(queues))) {
			return n.ResetIndirection()
		}
		return n.SetIndirection(table)
	}
	setting.command = func(text string) string { return tableCommand(n.name, text) }
	setting.show = showTable
	p.Settings = []Setting{setting}
	s.add(p)
}

func upTo(n uint32) (queues []uint32) {
	for q := range n {
		queues = append(queues, q)
	}
	return queues
}

// isEven says whether a table uses exactly these queues, each as often as the others, or once more.
func isEven(table, use []uint32) bool {
	times := map[uint32]int{}
	for _, q := range table {
		times[q]++
	}
	least, most := len(table), 0
	for _, q := range use {
		least, most = min(least, times[q]), max(most, times[q])
		delete(times, q)
	}
	return len(times) == 0 && most-least <= 1
}

func inTurn(size int, use []uint32) []uint32 {
	table := make([]uint32, size)
	for i := range table {
		table[i] = use[i%len(use)]
	}
	return table
}

func tableText(table []uint32) string {
	words := make([]string, len(table))
	for i, q := range table {
		words[i] = strconv.FormatUint(uint64(q), 10)
	}
	return strings.Join(words, " ")
}

func parseTable(text string) (table []uint32, err error) {
	for word := range strings.FieldsSeq(text) {
		q, err := strconv.ParseUint(word, 10, 16) // no NIC has more queues
		if err != nil {
			return nil, fmt.Errorf("read an indirection table: %w", err)
		}
		table = append(table, uint32(q))
	}
	if len(table) == 0 {
		return nil, errors.New("an indirection table is empty")
	}
	return table, nil
}

func queuesText(queues []uint32) string {
	numbers := make([]int, len(queues))
	for i, q := range queues {
		numbers[i] = int(q)
	}
	return list(numbers)
}

// weights are how often a table has each queue.
func weights(table []uint32) []int {
	w := make([]int, slices.Max(table)+1)
	for _, q := range table {
		w[q]++
	}
	return w
}

// showTable writes a table, of which there may be hundreds of entries, as shares of its queues.
func showTable(text string) string {
	table, err := parseTable(text)
	if err != nil {
		return text
	}
	var parts []string
	w := weights(table)
	for q := 0; q < len(w); {
		last := q
		for last+1 < len(w) && w[last+1] == w[q] {
			last++
		}
		switch {
		case w[q] == 0:
		case last == q:
			parts = append(parts, fmt.Sprintf("%d of queue %d", w[q], q))
		default:
			parts = append(parts, fmt.Sprintf("%d of each of queues %d-%d", w[q], q, last))
		}
		q = last + 1
	}
	return strings.Join(parts, ", ")
}

// tableCommand makes a table with these shares; "ethtool -X" cannot be given single entries.
func tableCommand(name, text string) string {
	table, err := parseTable(text)
	if err != nil {
		return ""
	}
	w := weights(table)
	if isEven(table, upTo(uint32(len(w)))) {
		return fmt.Sprintf("ethtool -X %s equal %d", name, len(w))
	}
	command := "ethtool -X " + name + " weight"
	even := slices.Max(w)-slices.Min(slices.DeleteFunc(slices.Clone(w), func(n int) bool { return n == 0 })) <= 1
	for _, n := range w {
		if even {
			n = min(n, 1)
		}
		command += " " + strconv.Itoa(n)
	}
	return command
}

// hashLetters are those of "ethtool -N ... rx-flow-hash", by bit.
const hashLetters = ".mvtsdfn"

func hashText(fields device.HashFields) string {
	if fields == 0 {
		return "nothing"
	}
	var text []byte
	for bit := 4; bit < len(hashLetters); bit++ { // those that matter come first, as one is used to: sdfn
		if fields&(1<<bit) != 0 {
			text = append(text, hashLetters[bit])
		}
	}
	for bit := 1; bit < 4; bit++ {
		if fields&(1<<bit) != 0 {
			text = append(text, hashLetters[bit])
		}
	}
	if known := device.HashFields(1<<len(hashLetters) - 2); fields&^known != 0 {
		return fmt.Sprintf("%s+%#x", text, uint64(fields&^known))
	}
	return string(text)
}

func parseHash(text string) (fields device.HashFields, err error) {
	letters, others, _ := strings.Cut(text, "+")
	if others != "" {
		more, err := strconv.ParseUint(others, 0, 64)
		if err != nil {
			return 0, fmt.Errorf("read hash fields %q: %w", text, err)
		}
		fields = device.HashFields(more)
	}
	if letters == "nothing" {
		return fields, nil
	}
	for _, letter := range letters {
		bit := strings.IndexRune(hashLetters, letter)
		if bit < 1 {
			return 0, fmt.Errorf("read hash fields: there is no %q", letter)
		}
		fields |= 1 << bit
	}
	return fields, nil
}

// hash looks at whether the ports of UDP take part in RSS, as those of TCP do.
func (s *survey) hash(n *nic) {
	if table, err := n.Indirection(); err != nil || len(table) == 0 || n.queues < 2 && n.wanted < 2 {
		return
	}
	p := Part{Kind: Hash, Interface: n.name}
	var without []string
	for _, packets := range []struct {
		name string
		kind uint32
	}{{"udp4", device.HashedUDP4}, {"udp6", device.HashedUDP6}} {
		now, err := n.HashFields(packets.kind)
		if err != nil {
			continue // the driver does not say
		}
		want := now
		if now&device.HashPorts != device.HashPorts || now&device.HashAddresses != device.HashAddresses {
			want = device.HashAddresses | device.HashPorts
			without = append(without, packets.name)
		}
		setting := Setting{Kind: Hash, Interface: n.name, Of: packets.name, Identity: n.identity, Now: hashText(now), Want: hashText(want), show: hashShown}
		setting.read = func() (string, error) {
			now, err := n.HashFields(packets.kind)
			return hashText(now), err
		}
		setting.write = func(text string) error {
			fields, err := parseHash(text)
			if err != nil {
				return err
			}
			return n.SetHashFields(packets.kind, fields)
		}
		setting.command = func(text string) string {
			return fmt.Sprintf("ethtool -N %s rx-flow-hash %s %s", n.name, packets.name, text)
		}
		p.Settings = append(p.Settings, setting)
	}
	if len(p.Settings) == 0 {
		return
	}
	p.Amiss = len(without) > 0
	p.Text = "ports of UDP take part in RSS"
	if p.Amiss {
		p.Text = fmt.Sprintf("addresses and ports of %s do not all take part in RSS: all packets between two hosts come to one queue", strings.Join(without, " and "))
	}
	s.add(p)
}

// hashShown is for people who do not know the letters.
func hashShown(text string) string {
	if text == "sdfn" {
		return "sdfn (addresses and ports)"
	}
	if text == "sd" {
		return "sd (addresses)"
	}
	return text
}
