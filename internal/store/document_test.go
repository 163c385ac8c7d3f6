package store

import (
	"encoding/json"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// What versions wrote that knew of one affinity only means the service's; they read what
// is written while a log has one.
func TestAffinitiesOfADocument(t *testing.T) {
	for name, test := range map[string]struct {
		service     model.Affinity
		generations []model.Affinity
		written     bool
	}{
		"flow":      {model.AffinityFlow, []model.Affinity{model.AffinityFlow, model.AffinityFlow}, false},
		"source-ip": {model.AffinitySourceIP, []model.Affinity{model.AffinitySourceIP}, false},
		"both":      {model.AffinitySourceIP, []model.Affinity{model.AffinitySourceIP, model.AffinityFlow}, true},
		"waits":     {model.AffinityFlow, []model.Affinity{model.AffinitySourceIP}, true},
		"no log":    {model.AffinitySourceIP, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := Document{Service: service("a", 1, 2)}
			d.Service.Affinity = test.service
			for i, affinity := range test.generations {
				d.Log.Generations = append(d.Log.Generations, model.Generation{Number: uint64(9 - i), Slots: 53, Affinity: affinity})
			}
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if has := strings.Contains(string(text), `"affinities"`); has != test.written {
				t.Errorf("affinities are written: %v, want %v, in %s", has, test.written, text)
			}
			var back Document
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatal(err)
			}
			if diff := difference(State{Sets: map[string]Set{"a": {[]Document{d}}}}, State{Sets: map[string]Set{"a": {[]Document{back}}}}); diff != "" {
				t.Errorf("the document differs when it is read again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadDocumentsAreRefused(t *testing.T) {
	good, err := json.Marshal(Document{Service: service("a", 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	for add, want := range map[string]string{
		`"affinities":["flow"],`:  `service "a": 1 affinities of 0 generations`,
		`"affinities":["other"],`: "unknown affinity",
		`"more":1,`:               "unknown field",
	} {
		var d Document
		err := json.Unmarshal([]byte("{"+add+string(good[1:])), &d)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s the error is %v, want %q", add, err, want)
		}
	}
}
