package loads

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// FuzzParseKeys: a file of keys is refused without a word of what is in it, or is read as the
// keys that it has.
func FuzzParseKeys(f *testing.F) {
	one, other := strings.Repeat("5eed", 16), strings.Repeat("0f", 32)
	for _, text := range []string{"", one, "# first\n" + one + "\n\n" + other + "\n", one + "\n" + strings.ToUpper(one), other + "\r\n  " + one + "\t\n", one[1:], one + "00",
		strings.Repeat(one+"\n", 5)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseKeys(text)
		if err != nil {
			for line := range strings.Lines(text) {
				if line = strings.TrimSpace(line); len(line) >= 2*keyLength && strings.Contains(err.Error(), line) {
					t.Errorf("the error repeats a line: %v", err)
				}
			}
			return
		}
		if len(all) == 0 || len(all) > keysMost {
			t.Fatalf("%d keys are read, want 1 to %d", len(all), keysMost)
		}
		var lines []string
		for _, k := range all {
			lines = append(lines, hex.EncodeToString(k.secret[:]))
		}
		if again, err := parseKeys(strings.Join(lines, "\n")); err != nil || !slices.Equal(again, all) {
			t.Errorf("%q is read as other keys than it has (%v)", text, err)
		}
	})
}
