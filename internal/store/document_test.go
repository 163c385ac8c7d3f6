package store

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// A document of a version that knew only one affinity means the service's. Such a
// version reads new documents while a log has one affinity.
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
			if diff := difference(State{Sets: map[string]Set{"a": {Documents: []Document{d}}}}, State{Sets: map[string]Set{"a": {Documents: []Document{back}}}}); diff != "" {
				t.Errorf("the document differs when it is read again (-want +got):\n%s", diff)
			}
		})
	}
}

// Steps are part of a log, and a log without any is written as versions read it that know
// none.
func TestStepsOfADocument(t *testing.T) {
	d := Document{Service: service("a", 1, 2)}
	text, err := json.Marshal(d)
	if err != nil || strings.Contains(string(text), "steps") {
		t.Errorf("without steps the document is %s (%v)", text, err)
	}
	d.Log.Steps = []model.Step{{Backend: d.Service.Backends[0].Endpoint(), Number: 3, Since: time.Date(2026, 1, 2, 3, 4, 5, 125e6, time.UTC)}}
	if text, err = json.Marshal(d); err != nil {
		t.Fatal(err)
	}
	var back Document
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(back.Log.Steps, d.Log.Steps) {
		t.Errorf("the steps %v are %v when they are read again", d.Log.Steps, back.Log.Steps)
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
