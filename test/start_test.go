package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of docs/start/ten-minutes.md do what it says, one after the other, in mounts of their own.
func TestStartPage(t *testing.T) {
	page, err := os.ReadFile("../docs/start/ten-minutes.md")
	if err != nil {
		t.Fatal(err)
	}
	script := "set -eu\nmount -t tmpfs tmpfs /run\nmkdir /run/netns\nmount -t tmpfs tmpfs /var/lib\nwhile umount /sys/fs/bpf 2> /dev/null; do :; done\n"
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 8 {
		t.Fatalf("docs/start/ten-minutes.md has %d blocks of commands", len(blocks))
	}
	for i, block := range blocks {
		script += "echo == block " + string(rune('0'+i)) + "\n" + block[1]
	}
	// maps.debug and progs.debug are the kernel's.
	script += "echo == block z\nfind /sys/fs/bpf /run/netns /var/lib . -mindepth 1 ! -name '*.debug' -printf 'left: %p\\n'\n"
	dir := t.TempDir()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--kill-child", "--pid", "--mount-proc", "--fork", "bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(weir)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		logs, _ := os.ReadFile(filepath.Join(dir, "director.log"))
		t.Fatalf("docs/start/ten-minutes.md: %v\n%s\ndirector.log:\n%s", err, out, logs)
	}
	if left := regexp.MustCompile(`(?m)^left: .*$`).FindAllString(string(out), -1); len(left) > 0 {
		t.Errorf("after \"Remove it\" there are still\n%s", strings.Join(left, "\n"))
	}
	answers := map[string][]string{}
	for part := range strings.SplitSeq(string(out), "== block ") {
		answers[part[:min(1, len(part))]] = regexp.MustCompile(`(?m)^from \w+$`).FindAllString(part, -1)
	}
	requests, drained, killed := answers["4"], answers["5"], answers["6"]
	if both := strings.Join(requests, " "); len(requests) != 10 || !strings.Contains(both, "web1") || !strings.Contains(both, "web2") {
		t.Errorf("ten requests got %q: both backends are expected", requests)
	}
	if len(drained) != 1 || drained[0] != "from web2" {
		t.Errorf("while web1 drains a request gets %q", drained)
	}
	if len(killed) != 1 {
		t.Errorf("after the process was killed a request gets %q", killed)
	}
}
