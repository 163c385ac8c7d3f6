package logs

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A log is written as the flags say, from their level on; the error for an unknown format names it.
func TestFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string // of what is said; empty: nothing is
		err  string
	}{
		{nil, `level=INFO msg="it runs" port=80`, ""},
		{[]string{"--log-format", "json"}, `"level":"INFO","msg":"it runs","port":80`, ""},
		{[]string{"--log-level", "warn"}, "", ""},
		{[]string{"--log-format", "xml"}, "", `unknown log format "xml" (one of json, text)`},
		{[]string{"--log-level", "loud"}, "", "loud"},
	} {
		var f Flags
		var out bytes.Buffer
		cmd := &cobra.Command{Use: "test", RunE: func(*cobra.Command, []string) error {
			handler, err := f.Handler(&out)
			if err == nil {
				slog.New(handler).Info("it runs", "port", 80)
			}
			return err
		}}
		f.Add(cmd)
		cmd.SetArgs(append([]string{}, test.args...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		err := cmd.Execute()
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%v are answered by %v, want %s", test.args, err, test.err)
			}
			continue
		}
		if err != nil || !strings.Contains(out.String(), test.want) || test.want == "" && out.Len() > 0 {
			t.Errorf("%v write %q, error %v; want %q", test.args, &out, err, test.want)
		}
	}
}
