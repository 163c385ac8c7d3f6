package group

import (
	"net/netip"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

func TestAssign(t *testing.T) {
	for name, test := range map[string]struct {
		want       int
		before     string
		candidates string // -a is unfit, !a is gone
		directors  string
		standby    int
	}{
		"nobody":                          {3, "", "", "", 0},
		"the first by name":               {2, "", "c b a", "a b", 1},
		"fewer than are wanted":           {3, "", "b a", "a b", 0},
		"who is one stays":                {2, "c b", "a b c d", "c b", 2},
		"a cordoned one is replaced":      {2, "a b", "-a b c", "b c", 0},
		"a gone one is replaced":          {2, "a b", "a !b c", "a c", 0},
		"a removed one is replaced":       {2, "a b", "b c", "b c", 0},
		"without another there are fewer": {2, "a b", "a -b", "a", 0},
		"if none is fit they stay":        {2, "a b", "-a !b -c", "a b", 0},
		"an unfit one is not taken":       {3, "", "-a b", "b", 0},
		"fewer are wanted":                {1, "b a", "a b c", "b", 2},
		"who is back waits":               {2, "b c", "a b c", "b c", 1},
		"named twice":                     {2, "a a", "a b", "a b", 0},
	} {
		var candidates []Candidate
		for text := range strings.FieldsSeq(test.candidates) {
			c := Candidate{Presence: Presence{Node: strings.TrimLeft(text, "-!")}, Gone: text[0] == '!'}
			if text[0] == '-' {
				c.Unfit = "it is cordoned"
			}
			candidates = append(candidates, c)
		}
		chosen, standby := Assign(test.want, strings.Fields(test.before), candidates)
		var got []string
		for _, c := range chosen {
			got = append(got, c.Node)
		}
		if text := strings.Join(got, " "); text != test.directors || standby != test.standby {
			t.Errorf("%s: %q are the directors and %d stand by, want %q and %d", name, text, standby, test.directors, test.standby)
		}
	}
}

// Each VIP belongs to one director, and all directors have about as many; when one goes, only its
// VIPs move.
func TestAnswers(t *testing.T) {
	directors := []string{"node-a", "node-b", "node-c"}
	owner := func(directors []string, vip VIP) (who string) {
		for _, d := range directors {
			if Answers(d, directors, vip) {
				if who != "" {
					t.Fatalf("%s is answered for by %s and %s", vip, who, d)
				}
				who = d
			}
		}
		return who
	}
	counts := map[string]int{}
	for i := range 3000 {
		vip := VIP{Address: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})}
		if i%2 == 1 { // tenants have the same address in many segments
			vip = VIP{model.Segment{Kind: model.SegmentVLAN, ID: uint32(1 + i)}, netip.AddrFrom4([4]byte{10, 0, 0, 1})}
		}
		who := owner(directors, vip)
		counts[who]++
		if left := owner(directors[:2], vip); who != "node-c" && left != who {
			t.Fatalf("%s moves from %s to %s although node-c has gone", vip, who, left)
		}
	}
	for _, d := range directors {
		if counts[d] < 900 || counts[d] > 1100 {
			t.Errorf("of 3000 VIPs the directors have %v", counts)
		}
	}
	if Answers("node-z", directors, VIP{Address: netip.MustParseAddr("203.0.113.1")}) || Answers("", nil, VIP{Address: netip.MustParseAddr("203.0.113.1")}) {
		t.Error("who is no director answers")
	}
}
