package engine

import (
	"net/netip"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// lastGuess is when a connection of any service was last seen.
type lastGuess time.Time

func (l lastGuess) LastGuess(model.ServiceID) time.Time { return time.Time(l) }

// Directors see connections where they guess whose they are, and can tell that they did well.
func TestWhereDirectorsGuess(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		protocol model.Protocol
		modes    []model.Mode
		snat     bool
		want     bool
	}{
		"l2dsr":          {model.TCP, []model.Mode{model.L2DSR}, false, true},
		"ipip":           {model.TCP, []model.Mode{model.IPIP}, false, true},
		"nat":            {model.TCP, []model.Mode{model.NAT}, false, true},
		"full NAT":       {model.TCP, []model.Mode{model.NAT}, true, false},
		"gue":            {model.TCP, []model.Mode{model.GUE, model.GUE}, false, false},
		"some of gue":    {model.TCP, []model.Mode{model.GUE, model.IPIP}, false, true},
		"UDP":            {model.UDP, []model.Mode{model.IPIP}, false, false},
		"nobody there":   {model.TCP, nil, false, false},
		"some of snat":   {model.TCP, []model.Mode{model.NAT, model.L2DSR}, true, true},
		"UDP over nat":   {model.UDP, []model.Mode{model.NAT}, false, false},
		"all kinds, UDP": {model.UDP, []model.Mode{model.GUE, model.IPIP, model.NAT}, false, false},
	} {
		s := &model.Service{Protocol: test.protocol, Mode: model.L2DSR, SNAT: test.snat}
		for i, mode := range test.modes {
			s.Backends = append(s.Backends, model.Backend{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Mode: &mode})
		}
		var e Evidence
		if got := e.Guessed(s); !got.IsZero() {
			t.Errorf("%s: nobody looks, and a connection was seen at %v", name, got)
		}
		e.Guesses = lastGuess(at)
		if got := e.Guessed(s); got.Equal(at) != test.want || got.IsZero() == test.want {
			t.Errorf("%s: a connection was seen at %v, want at %v: %v", name, got, at, test.want)
		}
		e.Crowd(true)
		if got := e.Guessed(s); !got.IsZero() {
			t.Errorf("%s: there is no room, and a connection was seen at %v", name, got)
		}
		e.Crowd(false)
		if got := e.Guessed(s); got.IsZero() == test.want {
			t.Errorf("%s: there is room again, and a connection was seen at %v", name, got)
		}
	}
}
