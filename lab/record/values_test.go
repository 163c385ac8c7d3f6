package record

import (
	"encoding/json"
	"math"
	"testing"
)

func TestWhatIsMissingIsNull(t *testing.T) {
	in := struct {
		Rounds Values
		Value  Number
		Other  Number
	}{Values{1, math.NaN(), math.Inf(1), 2.5}, Number(math.NaN()), 3}
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"Rounds":[1,null,null,2.5],"Value":null,"Other":3}`; string(data) != want {
		t.Errorf("wrote %s, want %s", data, want)
	}
	out := in
	out.Value = 7
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Rounds) != 4 || out.Rounds[0] != 1 || !math.IsNaN(out.Rounds[1]) || out.Rounds[3] != 2.5 {
		t.Errorf("read rounds %v back", out.Rounds)
	}
	if out.Value.Finite() || out.Other != 3 {
		t.Errorf("read %v and %v back, want NaN and 3", out.Value, out.Other)
	}
}

func TestNotNumbers(t *testing.T) {
	for _, text := range []string{`["1"]`, `{}`, `1`} {
		var v Values
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s was read as %v", text, v)
		}
	}
}
