package model_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// A key is written where a configuration is, and nowhere else.
func TestKeysAreNotPrinted(t *testing.T) {
	const digits = "8f95f09245765f80256934e50c66207f"
	var c model.QUICConfig
	if err := json.Unmarshal([]byte(`{"id": 1, "nonce-length": 4, "key": "`+digits+`"}`), &c); err != nil {
		t.Fatal(err)
	}
	service := model.Service{QUIC: []model.QUICConfig{c}}
	if text, err := json.Marshal(service); err != nil || !strings.Contains(string(text), digits) {
		t.Errorf("written as %s (%v), want it with the key", text, err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b"} {
		for _, value := range []any{c.Key, &c.Key, c, service, model.Config{Services: []model.Service{service}}} {
			text := strings.ToLower(fmt.Sprintf(format, value))
			for _, part := range []string{digits, "0x8f", "143", "8f95", "10001111"} {
				if strings.Contains(text, part) {
					t.Errorf("%s of a %T shows the key: %s", format, value, text)
				}
			}
		}
	}
}

// Server IDs are one text or a mapping, and what is written is read.
func TestServerIDsAsJSON(t *testing.T) {
	for _, test := range []struct {
		ids  model.ServerIDs
		text string
	}{
		{model.SameServerID("\x01\xff"), `"01ff"`},
		{model.ServerIDs{0: "\x01", 6: "\x02\x03"}, `{"0":"01","6":"0203"}`},
		{model.ServerIDs{0: "\x01"}, `{"0":"01"}`},
		{model.ServerIDs{}, `{}`},
	} {
		text, err := json.Marshal(test.ids)
		if err != nil || string(text) != test.text {
			t.Errorf("%v is written as %s (%v), want %s", test.ids, text, err, test.text)
		}
		var again model.ServerIDs
		if err := json.Unmarshal(text, &again); err != nil || again != test.ids {
			t.Errorf("%s is read as %v (%v)", text, again, err)
		}
	}
	for _, text := range []string{`"x"`, `""`, `5`, `[]`, `{"7":"01"}`, `{"00":"01"}`, `{"-1":"01"}`, `{"0":"0"}`, `{"0":1}`} {
		before := model.SameServerID("before")
		if ids := before; json.Unmarshal([]byte(text), &ids) == nil {
			t.Errorf("%s is read as %v", text, ids)
		} else if ids != before {
			t.Errorf("%s is refused, and leaves %v", text, ids)
		}
	}
}
