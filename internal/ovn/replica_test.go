package ovn

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir.io/weir/internal/ovsdb"
)

// After any changes a replica says what one says that has been given all rows at once; and what it said
// before stays as it was.
func TestReplicaByRandomChanges(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newReplica()
		rows := map[ovsdb.UUID]ovsdb.Row{} // ports as they have to be
		networks := map[ovsdb.UUID]bool{}
		type told struct {
			content content
			says    string
		}
		var before []told
		for range 60 {
			changes := ovsdb.Changes{"Port_Binding": {}, "Datapath_Binding": {}}
			for range 1 + random.IntN(8) {
				if random.IntN(4) == 0 {
					id := ovsdb.UUID(fmt.Sprintf("n%d", random.IntN(3)))
					changes["Datapath_Binding"][id] = ovsdb.Change{Delete: true}
					if networks[id] = !networks[id]; networks[id] {
						changes["Datapath_Binding"][id] = ovsdb.Change{Insert: datapathRow(id)}
					}
					continue
				}
				id := ovsdb.UUID(fmt.Sprintf("p%d", random.IntN(12)))
				if _, twice := changes["Port_Binding"][id]; twice {
					continue
				}
				old, has := rows[id]
				next := portRow(random)
				switch {
				case has && random.IntN(3) == 0:
					changes["Port_Binding"][id] = ovsdb.Change{Delete: true}
					delete(rows, id)
				case has:
					changes["Port_Binding"][id] = ovsdb.Change{Modify: difference(t, old, next)}
					rows[id] = next
				default:
					changes["Port_Binding"][id] = ovsdb.Change{Insert: next}
					rows[id] = next
				}
			}
			if err := r.apply(changes); err != nil {
				t.Fatal(err)
			}
			if random.IntN(2) == 0 {
				continue // no snapshot of each change
			}
			got := r.snapshot()
			anew := newReplica()
			all := ovsdb.Changes{"Port_Binding": {}, "Datapath_Binding": {}}
			for id, row := range rows {
				all["Port_Binding"][id] = ovsdb.Change{Initial: row}
			}
			for id, is := range networks {
				if is {
					all["Datapath_Binding"][id] = ovsdb.Change{Initial: datapathRow(id)}
				}
			}
			if err := anew.apply(all); err != nil {
				t.Fatal(err)
			}
			if is, want := says(got), says(anew.snapshot()); is != want {
				t.Fatalf("seed %d: the replica says\n%s\nand one that is made anew\n%s", seed, is, want)
			}
			before = append(before, told{got, says(got)})
			for i, b := range before {
				if now := says(b.content); now != b.says {
					t.Fatalf("seed %d: snapshot %d said\n%s\nand says\n%s", seed, i, b.says, now)
				}
			}
		}
	}
}

func datapathRow(id ovsdb.UUID) ovsdb.Row {
	return ovsdb.Row{"tunnel_key": json.RawMessage("7"), "external_ids": json.RawMessage(`["map",[["logical-switch","` + string(id) + `"],["name","same"]]]`)}
}

// portRow has few addresses, which ports therefore share.
func portRow(random *rand.Rand) ovsdb.Row {
	var mac ovsdb.Set[string]
	for range random.IntN(3) {
		text := fmt.Sprintf("02:00:00:00:00:%02x", random.IntN(4))
		for range random.IntN(3) {
			text += fmt.Sprintf(" 10.0.0.%d", random.IntN(4))
		}
		mac = ovsdb.Toggle(mac, ovsdb.Set[string]{text})
	}
	write := func(v any) json.RawMessage {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return text
	}
	row := ovsdb.Row{"logical_port": write(fmt.Sprintf("name%d", random.IntN(100))), "tunnel_key": write(1 + random.IntN(1000)),
		"datapath": write(ovsdb.UUID(fmt.Sprintf("n%d", random.IntN(3)))), "mac": write(mac), "chassis": write(ovsdb.Set[ovsdb.UUID]{}), "up": write(ovsdb.Set[bool]{random.IntN(2) == 0})}
	if random.IntN(2) == 0 {
		row["chassis"] = write(ovsdb.UUID("h"))
	}
	row["type"] = write([]string{"", "", typeVirtual}[random.IntN(3)])
	return row
}

// difference is what a server says of a change: for the column of many, mac, what differs.
func difference(t *testing.T, old, next ovsdb.Row) ovsdb.Row {
	t.Helper()
	changed := ovsdb.Row{}
	for name, value := range next {
		if name == "mac" {
			var a, b ovsdb.Set[string]
			for text, set := range map[*json.RawMessage]*ovsdb.Set[string]{ptr(old[name]): &a, &value: &b} {
				if err := json.Unmarshal(*text, set); err != nil {
					t.Fatal(err)
				}
			}
			value, _ = json.Marshal(ovsdb.Toggle(a, b)) // the elements that only one has
		}
		changed[name] = value
	}
	return changed
}

func ptr[T any](v T) *T { return &v }

// says is what a consumer can ask.
func says(c content) string {
	s := Snapshot{content: c}
	text := fmt.Sprintln(c.networks, c.known)
	for n := range 3 {
		id := fmt.Sprintf("n%d", n)
		network, err := s.Network(id)
		text += fmt.Sprintln(id, network, err)
		for i := range 4 {
			ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			p, has := s.Port(id, ip)
			text += fmt.Sprintln(ip, has, p.Name, p.Key, p.Up, p.Shared, p.MAC(ip))
		}
		for _, p := range s.Ports(id) {
			text += fmt.Sprintln(p.Name, p.Key, p.Addresses)
		}
		var virtual []string // names are not unique here
		for _, v := range s.Virtual(id) {
			virtual = append(virtual, fmt.Sprint(v))
		}
		slices.Sort(virtual)
		text += fmt.Sprintln(virtual)
	}
	_, err := s.Network("same")
	return text + fmt.Sprintln(err)
}

// Whatever the column mac has, what is read of it is usable.
func FuzzReadAddresses(f *testing.F) {
	for _, text := range []string{"fa:16:3e:00:00:01 10.0.0.1 fd00::1", "unknown", "dynamic 10.0.0.1", "02:00:00:00:00:01 ::ffff:10.0.0.1/128", "router", ""} {
		f.Add(text, "fa:16:3e:00:00:02")
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		addresses, unknown, err := readAddresses(ovsdb.Set[string]{first, second})
		again, same, _ := readAddresses(ovsdb.Set[string]{second, first})
		if fmt.Sprint(addresses, unknown) != fmt.Sprint(again, same) {
			t.Errorf("%q and %q are read as %v, and in the other order as %v", first, second, addresses, again)
		}
		for _, a := range addresses {
			if a.MAC.IsZero() || a.MAC[0]&1 != 0 {
				t.Errorf("%q and %q have the MAC address %v (%v)", first, second, a.MAC, err)
			}
			for _, ip := range a.IPs {
				if !usable(ip) || ip.Is4In6() {
					t.Errorf("%q and %q have the address %v (%v)", first, second, ip, err)
				}
			}
		}
	})
}
