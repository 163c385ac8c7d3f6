package bfd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// signer returns one end's side of an authentication.
func signer(t *testing.T, kind model.BFDAuthenticationType, id uint8, secret string) *guard {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := &model.BFDAuthentication{Type: kind, KeyID: id, PasswordFile: file}
	p, err := readPassword(want)
	if err != nil {
		t.Fatal(err)
	}
	g := &guard{sent: 1<<32 - 3} // it passes the end of the numbers soon
	g.set(want, p, nil)
	return g
}

var signedTypes = []model.BFDAuthenticationType{model.KeyedMD5, model.MeticulousKeyedMD5, model.KeyedSHA1, model.MeticulousKeyedSHA1}

// Each end takes what the other has signed, once, and nothing else.
func TestSignatures(t *testing.T) {
	now := time.Unix(1e9, 0)
	packet := Packet{State: Up, Multiplier: 3, Mine: 9, Yours: 7, DesiredTx: ms(50), RequiredRx: ms(50)}
	for _, kind := range signedTypes {
		t.Run(string(kind), func(t *testing.T) {
			here, there := signer(t, kind, 1, "secret"), signer(t, kind, 1, "secret")
			takes := func(g *guard, b []byte) string {
				p, why := Parse(b)
				if why != Accepted {
					t.Fatalf("%x: %v", b, why)
				}
				wrong := g.check(now, &p, b)
				if wrong == "" {
					g.accepted(now, ms(150))
				}
				return wrong
			}
			refuses := func(what string, b []byte, because string) {
				t.Helper()
				if why := takes(here, b); !strings.Contains(why, because) {
					t.Errorf("%s: %q, want %q", what, why, because)
				}
			}
			var wires [][]byte
			for range 12 {
				wires = append(wires, there.sign(packet, nil))
			}
			for i, b := range wires[:5] {
				if why := takes(here, b); why != "" {
					t.Fatalf("packet %d: %s", i, why)
				}
			}
			refuses("an earlier packet", wires[2], "sequence numbers")
			if meticulous := methods[kind].meticulous; meticulous {
				refuses("the same packet", wires[4], "sequence numbers")
			} else if why := takes(here, wires[4]); why != "" {
				t.Errorf("the same packet: %s", why)
			}
			if why := takes(here, wires[11]); why != "" { // six were lost
				t.Errorf("a packet after a loss: %s", why)
			}
			for range 10 {
				there.sign(packet, nil)
			}
			refuses("a number too far ahead", there.sign(packet, nil), "sequence numbers")
			next := func() []byte { there.sent = here.last; return there.sign(packet, nil) }
			for i := range next() {
				if i < 1 || i == 2 || i >= 3 && i < fixedSize+1 { // another state, say; lengths and types are refused before
					continue
				}
				b := next()
				b[i] ^= 1
				if p, why := Parse(b); why == Accepted && here.check(now, &p, b) == "" {
					t.Errorf("byte %d may be another one", i)
				}
			}
			refuses("another password", signer(t, kind, 1, "Secret").sign(packet, nil), "sequence numbers")
			refuses("another key", signer(t, kind, 2, "secret").sign(packet, nil), "the key 2")
			refuses("no signature", packet.Append(nil), "not authenticated")
			now = now.Add(ms(300)) // twice the detection time
			refuses("another password", signer(t, kind, 1, "Secret").sign(packet, nil), "another password")
			if why := takes(here, signer(t, kind, 1, "secret").sign(packet, nil)); why != "" {
				t.Errorf("a neighbor that has begun anew: %s", why)
			}
		})
	}
	other := signer(t, model.KeyedMD5, 1, "secret").sign(packet, nil)
	p, _ := Parse(other)
	if why := signer(t, model.KeyedSHA1, 1, "secret").check(now, &p, other); !strings.Contains(why, "type 2") {
		t.Errorf("another type: %q", why)
	}
	if why := new(guard).check(now, &p, other); why == "" {
		t.Error("an end without authentication takes a packet that has one")
	}
}

// A password that cannot be read does not make a session one without: it keeps the password that
// it has, and without any says nothing.
func TestPasswordIsLost(t *testing.T) {
	g := signer(t, model.KeyedSHA1, 1, "secret")
	before := g.password
	want := &model.BFDAuthentication{Type: model.KeyedSHA1, KeyID: 1, PasswordFile: "/nowhere/password"}
	_, err := readPassword(want)
	if err == nil {
		t.Fatal("a file that is not there is read")
	}
	if g.set(want, nil, err); g.password != before || g.silent() || !strings.Contains(g.problem, "/nowhere/password") {
		t.Errorf("it has %v, and the problem %q", g.password, g.problem)
	}
	g = &guard{}
	if g.set(want, nil, err); !g.silent() {
		t.Error("it speaks without a password")
	}
	p := Packet{State: Up, Multiplier: 3, Mine: 9, Yours: 7}
	if why := g.check(time.Unix(1e9, 0), &p, p.Append(nil)); why == "" {
		t.Error("it takes packets that are not signed")
	}
	for text, fine := range map[string]bool{"": false, strings.Repeat("x", 20): true, strings.Repeat("x", 21): false} {
		file := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want.PasswordFile = file
		if err := CheckPassword(want); (err == nil) != fine {
			t.Errorf("a password of %d characters: %v", len(text), err)
		}
	}
}
