package config

import (
	"strings"
	"testing"
)

// What an error says to write in place of a text is read, also in a list in brackets inside of braces, and is that text.
func TestSuggestedTexts(t *testing.T) {
	for _, text := range []string{"vxlan:5001", "eth0", "2001:db8::/32", "10.0.0.2:6083", "65000:100", "a b", "it's", `a "quoted" one`, "a, b", "[a]", "{a}", "5", "true", "null", "~", "- a", "#a", "a #b", "&a", "*a", "!a", "%a", "@a", "", " a ", "a\nb", "a:", ":a", `\`} {
		doc, errs := newDocument([]byte("api: {clients: [{segments: ["+inFlow(text)+"]}]}"), false)
		if errs != nil {
			t.Errorf("%q is to be written %s: %v", text, inFlow(text), errs)
			continue
		}
		var got struct {
			API struct {
				Clients []struct {
					Segments []string `json:"segments"`
				} `json:"clients"`
			} `json:"api"`
		}
		if dec := doc.decode(&got); len(dec.errs) > 0 || got.API.Clients[0].Segments[0] != text {
			t.Errorf("%q is to be written %s, and that is %+v: %v", text, inFlow(text), got, dec.errs)
		}
	}
	if plain := inFlow("eth0"); strings.Contains(plain, `"`) {
		t.Errorf("eth0 is to be written %s", plain)
	}
}
