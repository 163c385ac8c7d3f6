package model

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Each version of weir reads what the one before it has stored: the form is fixed.
func TestLogIsStableJSON(t *testing.T) {
	log := Log{Generations: []Generation{
		{Number: 2, Since: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), From: time.Date(2026, 1, 2, 3, 4, 10, 6000, time.UTC), Slots: 1021, Members: []Member{
			{netip.MustParseAddrPort("10.0.0.1:0"), 100, 0},
			{netip.MustParseAddrPort("[2001:db8::1]:8080"), 65535, 1},
		}},
		{Number: 1, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Held: time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC), Slots: 1021, Members: []Member{},
			Gone: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0")}},
	}}
	const want = `{"generations":[` +
		`{"number":2,"since":"2026-01-02T03:04:05.000006Z","from":"2026-01-02T03:04:10.000006Z","slots":1021,"members":[` +
		`{"backend":"10.0.0.1:0","weight":100},{"backend":"[2001:db8::1]:8080","weight":65535,"tier":1}]},` +
		`{"number":1,"since":"2026-01-02T03:04:05Z","held":"2026-01-02T03:04:07Z","slots":1021,"members":[],"gone":["10.0.0.1:0"]}]}`
	text, err := json.Marshal(log)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("the log is written as\n%s, want\n%s", text, want)
	}
	var again Log
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, log) {
		t.Errorf("the log is read as %v, want %v", again, log)
	}
}

func TestServiceID(t *testing.T) {
	a := Service{Name: "a", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: TCP, Port: PortRange{80, 80}}
	b := a
	b.Name, b.Mode, b.RingSize, b.Backends = "b", NAT, 2003, []Backend{{}}
	if a.ID() != b.ID() {
		t.Error("another name, mode, size and backends make another service")
	}
	b.Segment = Segment{SegmentVLAN, 7}
	if a.ID() == b.ID() {
		t.Error("the same VIP in another segment is the same service")
	}
	text, err := json.Marshal(b.ID())
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"segment":"vlan:7","vip":"192.0.2.1","protocol":"tcp","port":"80"}`; string(text) != want {
		t.Errorf("the ID is written as %s, want %s", text, want)
	}
}

// A log that is given has to be one that rings can be made of.
func TestValidateDocuments(t *testing.T) {
	at := func(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }
	good := func() []Document {
		b := NewBackend()
		b.Address = netip.MustParseAddr("10.0.0.2")
		return []Document{{Service: Service{Name: "a", VIP: netip.MustParseAddr("192.0.2.1"), Protocol: TCP, Port: PortRange{80, 80}, Mode: NAT, Backends: []Backend{b}},
			Log: Log{Generations: []Generation{
				{Number: 3, Slots: 1021, Members: []Member{{at("10.0.0.2:0"), 100, 0}, {at("10.0.0.3:0"), 1, 0}}},
				{Number: 1, Slots: 1021, Members: []Member{{at("10.0.0.2:0"), 100, 0}}, Kept: NewSlotSet(1021)}}}}}
	}
	documents := good()
	if err := ValidateDocuments(documents); err != nil {
		t.Fatal(err)
	}
	if documents[0].Service.Backends[0].Name != "10.0.0.2" {
		t.Errorf("the defaults of %+v are not filled in", documents[0].Service)
	}
	const g = "documents[0].log.generations"
	for want, spoil := range map[string]func(s *Service, l *Log){
		"services[0].vip":                   func(s *Service, _ *Log) { s.VIP = netip.Addr{} },
		g + ": is empty":                    func(_ *Service, l *Log) { l.Generations = nil },
		g + "[1].number":                    func(_ *Service, l *Log) { l.Generations[1].Number = 3 },
		g + "[0].number":                    func(_ *Service, l *Log) { l.Generations[0].Number = 0 },
		g + "[0].slots: 1022":               func(_ *Service, l *Log) { l.Generations[0].Slots = 1022 },
		g + "[1].slots: 0":                  func(_ *Service, l *Log) { l.Generations[1].Slots = 0 },
		g + "[0].slots: 4294967291":         func(_ *Service, l *Log) { l.Generations[0].Slots = 4294967291 },
		g + "[1].kept":                      func(_ *Service, l *Log) { l.Generations[1].Kept = NewSlotSet(1019) },
		g + "[0].members: ":                 func(_ *Service, l *Log) { l.Generations[0].Members[0].Backend = at("10.0.0.4:0") },
		g + "[0].members[1].backend: i":     func(_ *Service, l *Log) { l.Generations[0].Members[1].Backend = at("10.0.0.2:0") },
		g + "[0].members[1].weight":         func(_ *Service, l *Log) { l.Generations[0].Members[1].Weight = 0 },
		g + "[1].members[0].backend: is no": func(_ *Service, l *Log) { l.Generations[1].Members[0].Backend = netip.AddrPort{} },
	} {
		documents := good()
		spoil(&documents[0].Service, &documents[0].Log)
		if err := ValidateDocuments(documents); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it is valid with error %v, want %s", err, want)
		}
	}
}
