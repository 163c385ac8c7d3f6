package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file is checked by anybody, anywhere: by nobody, in a network namespace without an interface.
func TestCheckNeedsNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can run a process as nobody")
	}
	self := programForAll(t)
	good, err := os.ReadFile("testdata/check/good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "weir's file.yaml")
	if err := os.WriteFile(file, good, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		file, stdin string
		says        string
	}{
		{file, "", file + ": ok (1 service, director and agent)\n"},
		{"-c-", string(good), "<stdin>: ok (1 service, director and agent)\n"},
		{"-", string(good), "<stdin>: ok (1 service, director and agent)\n"},
		{"-", strings.Replace(string(good), "gue", "TUN", 1), "<stdin>:9: services[0].mode: unknown mode \"TUN\"; did you mean ipip? (one of gue, ipip, l2dsr, nat, redirect)\nweir: something is wrong with <stdin>\n"},
	} {
		cmd := exec.CommandContext(t.Context(), self, "check", test.file)
		cmd.Env = []string{asWeir + "=1"}
		cmd.Stdin = strings.NewReader(test.stdin)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Cloneflags: syscall.CLONE_NEWNET}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if got, fine := string(out), strings.Contains(test.says, "ok"); got != test.says || (err == nil) != fine {
			t.Errorf("nobody checks %s: %v\n%s\nwant\n%s", test.file, err, got, test.says)
		}
	}
}

// A file may be named as other commands and other programs name it.
func TestCheckNamesFilesAsOthersDo(t *testing.T) {
	const good = "testdata/check/good.yaml"
	fine := good + ": ok (1 service, director and agent)\n"
	for _, args := range [][]string{{good}, {"-c", good}, {"--config", good}, {"--config=" + good}, {"-f", good}, {"-c", good, good}, {"-c", good, "-c", good}, {"-c", good, "-f", good}} {
		var out bytes.Buffer
		code := execute(t.Context(), append([]string{"check"}, args...), &out, &out)
		if got := strings.ReplaceAll(out.String(), fine+fine, fine); code != 0 || got != fine {
			t.Errorf("weir check %s ends with %d and says\n%s", strings.Join(args, " "), code, &out)
		}
	}
}

// The schema that is printed is one.
func TestCheckPrintsTheSchema(t *testing.T) {
	var out, complaint bytes.Buffer
	if code := execute(t.Context(), []string{"check", "--schema"}, &out, &complaint); code != 0 {
		t.Fatalf("exit status %d: %s", code, &complaint)
	}
	var schema map[string]any
	if err := json.Unmarshal(out.Bytes(), &schema); err != nil || schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("no JSON Schema is printed: %v\n%.100s", err, out.String())
	}
}
