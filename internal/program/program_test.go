package program_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/internal/program"
)

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name, said, err string
		of              program.Program
	}{
		{"its arguments are no shell's", "$HOME *\n", "", program.Program{Argv: []string{"/bin/echo", "$HOME", "*"}}},
		{"its environment", "A=b\n", "", program.Program{Argv: []string{"/usr/bin/env"}, Env: []string{"A=b"}}},
		{"no environment", "", "", program.Program{Argv: []string{"/usr/bin/env"}}},
		{"what it reads", "abc", "", program.Program{Argv: []string{"/bin/cat"}, Stdin: []byte("abc")}},
		{"nothing to read", "", "", program.Program{Argv: []string{"/bin/cat"}}},
		{"where it is", "/usr\n", "", program.Program{Argv: []string{"/bin/pwd"}, Dir: "/usr"}},
		{"it fails", "no\n", "exit status 3", program.Program{Argv: []string{"/bin/sh", "-c", "echo no; exit 3"}}},
		{"its limits", "64\n", "", program.Program{Argv: []string{"/bin/sh", "-c", "until [ $(ulimit -n) = 64 ]; do :; done; ulimit -n"}, Limits: map[int]uint64{unix.RLIMIT_NOFILE: 64}}},
		{"it is loud", strings.Repeat("y\n", 512), "exit status 1", program.Program{Argv: []string{"/bin/sh", "-c", "yes | head -c 100000; exit 1"}}},
	} {
		said, err := test.of.Run(t.Context())
		got := ""
		if err != nil {
			got = err.Error()
		}
		if said != test.said || got != test.err || errors.As(err, new(*program.StartError)) {
			t.Errorf("%s: it says %q and ends with %v, want %q and %q", test.name, said, err, test.said, test.err)
		}
	}
}

// A program that does not begin says why, and that is not what it ends with.
func TestStartErrors(t *testing.T) {
	for path, want := range map[string]string{"/no/such": "run /no/such: no such file or directory", "/etc/passwd": "run /etc/passwd: permission denied"} {
		_, err := (&program.Program{Argv: []string{path}}).Run(t.Context())
		if !errors.As(err, new(*program.StartError)) || err.Error() != want {
			t.Errorf("of %s the error is %v, want %s", path, err, want)
		}
	}
}

// When the time is over, a program ends with its children; one that is alone ends with them whenever it ends.
func TestEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := (&program.Program{Argv: []string{"/bin/sh", "-c", "sleep 1000 & wait"}}).Run(ctx)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Errorf("a program whose time is over ends with %v", err)
	}
	// Without Alone the child would hold the output open until [exec.Cmd.WaitDelay] is over, and live on.
	said, err := (&program.Program{Argv: []string{"/bin/sh", "-c", "sleep 1000 & echo $!"}, Alone: true}).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/bin/ps", "-o", "stat=", "-p", strings.TrimSpace(said)).Output(); err == nil && !strings.HasPrefix(string(out), "Z") {
		t.Errorf("the child of a program that has ended is there: %s", out)
	}
}
