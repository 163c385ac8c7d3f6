// Package image runs the container images of weir and weir-kube by the lines of docs/operate/install.md,
// and as in a cluster: with only the chart's capabilities.
package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir.io/weir/lab/netlab"
)

const file = `
director: {interfaces: [eth0]}
agent: {interfaces: [eth0]}
directors: [10.2.0.11]
services:
- name: web
  vip: 192.0.2.1
  protocol: tcp
  port: 80
  mode: gue
  health: {kind: tcp, interval: 200ms}
  backends:
  - {name: backend, address: 10.2.0.21}
`

// charts are the chart's rendered files with a director, and with an agent; kube/test checks them.
var charts = map[string]string{"run": "groups", "agent": "agent"}

// line returns the words of the command by which the page runs a verb, from the flags on, as a shell reads
// them behind the page's first command, which sets the version.
func line(t *testing.T, verb string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/operate/install.md")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile("(?m)^podman run ((?:.*\\\\\n)+.* " + verb + ")$").FindSubmatch(page)
	if match == nil {
		t.Fatalf("docs/operate/install.md has no podman run of weir %s", verb)
	}
	version := regexp.MustCompile("(?m)^```sh\nVERSION=([0-9.]+)\n```$").FindSubmatch(page)
	if version == nil {
		t.Fatal("docs/operate/install.md does not set VERSION")
	}
	words := strings.Fields(strings.ReplaceAll(string(match[1]), "\\\n", " "))
	for i := range words {
		words[i] = os.Expand(words[i], func(name string) string {
			if name != "VERSION" {
				t.Fatalf("docs/operate/install.md does not say what $%s is", name)
			}
			return string(version[1])
		})
	}
	return words
}

// of returns these words with others instead of some, each of which is there exactly once.
func of(t *testing.T, words []string, others map[string]string) []string {
	t.Helper()
	words = slices.Clone(words)
	for from, to := range others {
		if i := slices.Index(words, from); i < 0 || slices.Contains(words[i+1:], from) {
			t.Fatalf("docs/operate/install.md has not one %s in podman run %s", from, strings.Join(words, " "))
		} else {
			words[i] = to
		}
	}
	return words
}

// after returns the word behind a flag.
func after(t *testing.T, words []string, flag string) string {
	t.Helper()
	i := slices.Index(words, flag)
	if i < 0 || i+1 == len(words) {
		t.Fatalf("docs/operate/install.md has no %s in podman run %s", flag, strings.Join(words, " "))
	}
	return words[i+1]
}

// capabilities returns the chart's capabilities for the container whose argument is a verb.
func capabilities(t *testing.T, verb string) string {
	t.Helper()
	text, err := os.ReadFile("../../kube/test/testdata/chart/" + charts[verb] + ".golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?s)- ` + verb + `\n.*?capabilities: \{drop: \[ALL\], add: \[([A-Z_, ]+)\]\}`).FindSubmatch(text)
	if match == nil {
		t.Fatalf("the chart gives weir %s no capabilities", verb)
	}
	return strings.ReplaceAll(string(match[1]), " ", "")
}

// An image is only a program: every node pulls it.
func TestImagesAreSmall(t *testing.T) {
	const most = 60e6
	for _, variable := range []string{"WEIR_IMAGE", "WEIR_KUBE_IMAGE"} {
		archive := os.Getenv(variable)
		if archive == "" {
			t.Skip("make test-image runs it")
		}
		p := newPodman(t, archive)
		size, err := strconv.Atoi(strings.TrimSpace(p.must("image", "inspect", "--format", "{{.Size}}", p.image)))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s takes %d bytes", archive, size)
		if size > most {
			t.Errorf("%s takes %d bytes, and %.0f are the most", archive, size, most)
		}
	}
}

// The controller's image runs as user nobody, with no capability, and without a cluster says what
// it looks for.
func TestImageOfController(t *testing.T) {
	archive := os.Getenv("WEIR_KUBE_IMAGE")
	if archive == "" {
		t.Skip("make test-image runs it")
	}
	p, dir := newPodman(t, archive), t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "weir-kube.yaml"), []byte("mode: nat\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := p.command("run", "--rm", "--network", "none", "--read-only", "--no-hosts", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--user", "65534:65534", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000", "--volume", dir+":/etc/weir/kube:ro",
		p.image, "controller", "--config=/etc/weir/kube/weir-kube.yaml", "--log-level=info", "--log-format=json")
	if err == nil || !strings.Contains(err.Error(), "weir-kube: find the API server: ") {
		t.Errorf("without a cluster it says %q, %v", out, err)
	}
}

// Director and agent in containers forward a client's requests, by the lines of docs/operate/install.md
// as they stand there, and with the chart's capabilities instead. Forwarding goes on when the director's
// container is removed: its datapath stays.
//
//	client --- switch --- director (container)
//	                  --- backend (container of the agent; web server)
func TestImage(t *testing.T) {
	archive := os.Getenv("WEIR_IMAGE")
	if archive == "" {
		t.Skip("make test-image runs it")
	}
	t.Run("page", func(t *testing.T) { forwards(t, archive, line) })
	t.Run("chart", func(t *testing.T) {
		forwards(t, archive, func(t *testing.T, verb string) []string {
			words := line(t, verb)
			return of(t, words, map[string]string{after(t, words, "--cap-add"): capabilities(t, verb)})
		})
	})
}

func forwards(t *testing.T, archive string, words func(t *testing.T, verb string) []string) {
	l := netlab.ForTest(t)
	lan := l.Switch("switch")
	client, director, backend := l.Host("client"), l.Router("director"), l.Host("backend")
	for h, address := range map[*netlab.Host]string{client: "10.2.0.2/24", director: "10.2.0.11/24", backend: "10.2.0.21/24"} {
		l.Link(h, lan, netlab.LinkOptions{XDP: true, A: []string{address}})
	}
	client.Route("192.0.2.0/24", "10.2.0.11")
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	p := newPodman(t, archive)
	p.words = words
	p.says(backend, "agent", `set sysctl net\.ipv4\.conf\.all\.arp_ignore to 1: `)
	// A container may not write sysctls.
	backend.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	backend.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	p.run(backend, "agent")
	stop := p.run(director, "run")
	serve(t, backend)
	ask := func() (string, error) {
		web := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: client.DialContext}}
		answer, err := web.Get("http://192.0.2.1/")
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	p.waitFor("the client to be served", func() error {
		_, err := ask()
		return err
	})
	stop()
	for range 20 {
		if from, err := ask(); err != nil || from != "10.2.0.2" {
			t.Fatalf("without the director's container: the server was asked by %q (%v), not by the client", from, err)
		}
	}
	p.says(director, "detach", "removed the director on eth0")
}

// all asks for everything that needs a capability of the page's lines.
const all = `
director: {interfaces: [eth0]}
bgp:
  asn: 65001
  router-id: 10.2.0.11
  listen: [10.2.0.11]
  neighbors: [{address: 10.2.0.2, asn: 65000, bfd: {interval: 300ms}}]
services:
- {name: web, vip: 192.0.2.1, protocol: tcp, port: 80, mode: gue, health: {kind: tcp}, backends: [{address: 10.2.0.2}]}
`

// documented returns what the page says of a capability that is missing, as patterns.
func documented(t *testing.T, without string) (patterns []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operate/install.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `" + without + "` .*$").Find(page)
	for _, match := range regexp.MustCompile("`(CAP_"+without+` \([^)]+\))`).FindAllSubmatch(row, -1) {
		patterns = append(patterns, regexp.QuoteMeta(string(match[1])))
	}
	if len(patterns) == 0 {
		t.Fatalf("docs/operate/install.md does not say what is missing without %s", without)
	}
	return patterns
}

// optional are the capabilities without which a director goes on.
var optional = []string{"SYS_NICE", "IPC_LOCK"}

// Every capability of the page's lines is needed: without one a process ends, or BFD may be late, and both it
// and doctor name the capability. With all of them none is missing.
func TestImageWithoutACapability(t *testing.T) {
	archive := os.Getenv("WEIR_IMAGE")
	if archive == "" {
		t.Skip("make test-image runs it")
	}
	l := netlab.ForTest(t)
	host, other := l.Host("host"), l.Host("other")
	l.Link(host, other, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.11/24"}, B: []string{"10.2.0.2/24"}})
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	host.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	host.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	for verb, runs := range map[string]string{"run": `msg="BFD process runs"`, "agent": `msg="agent runs"`} {
		words := line(t, verb)
		given := after(t, words, "--cap-add")
		start := func(t *testing.T, without, file string) *podman {
			p := newPodman(t, archive)
			p.file = file
			p.words = func(t *testing.T, _ string) []string {
				left := slices.DeleteFunc(strings.Split(given, ","), func(name string) bool { return name == without })
				return of(t, words, map[string]string{given: strings.Join(left, ",")})
			}
			return p
		}
		whole := map[string]string{"run": all, "agent": strings.Replace(file, "director: {interfaces: [eth0]}\n", "", 1)}[verb]
		for without := range strings.SplitSeq(given, ",") {
			t.Run(verb+" without "+without, func(t *testing.T) {
				p := start(t, without, whole)
				missing := "(" + strings.Join(documented(t, without), "|") + ")"
				if slices.Contains(optional, without) {
					p.says(host, verb, `msg="BFD may be late when the host is busy" .*missing=".*`+missing)
					p.says(host, "doctor", "(?m)^warn +capabilities +CAP_"+without+` \(bfd: .* missing; fix`)
					return
				}
				p.says(host, verb, "weir: "+missing+" missing: run as root")
				p.says(host, "doctor", "(?m)^FAIL +capabilities +"+missing+" missing; fix")
			})
		}
		t.Run(verb+" with all", func(t *testing.T) {
			p := start(t, "", whole)
			for verb, says := range map[string]string{verb: runs, "doctor": "(?m)^ok +capabilities +CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON$"} {
				if said := p.says(host, verb, says); regexp.MustCompile(`CAP_\w+ \([^)]*\) missing|missing="?CAP_`).MatchString(said) {
					t.Errorf("weir %s misses something with %s:\n%s", verb, given, said)
				}
			}
			if verb == "run" {
				p.says(host, "detach", "removed the director on eth0")
			}
		})
	}
}

// An agent that enters other namespaces says what it needs beyond the page's line. With that, it finds the VIP
// there, and does not put it on lo.
func TestImageInOtherNamespaces(t *testing.T) {
	archive := os.Getenv("WEIR_IMAGE")
	if archive == "" {
		t.Skip("make test-image runs it")
	}
	l := netlab.ForTest(t)
	host, other := l.Host("host"), l.Host("other")
	l.Link(host, other, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.21/24"}, B: []string{"10.2.0.2/24", "192.0.2.1/32"}})
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	host.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	host.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	p := newPodman(t, archive)
	p.file = strings.Replace(file, "director: {interfaces: [eth0]}\nagent: {interfaces: [eth0]", "agent: {interfaces: [eth0], namespaces: ["+other.Namespace()+"]", 1)
	p.words = line
	p.says(host, "agent", "weir: "+documented(t, "SYS_ADMIN")[0]+" missing: run as root")
	p.words = func(t *testing.T, verb string) []string {
		words := line(t, verb)
		given := after(t, words, "--cap-add")
		return append([]string{"--volume", "/run/netns:/run/netns"}, of(t, words, map[string]string{given: given + ",SYS_ADMIN"})...)
	}
	p.says(host, "agent", `msg="agent runs"`)
	if on, err := host.Command(t.Context(), "ip", "address", "show", "dev", "lo").Output(); err != nil || bytes.Contains(on, []byte("192.0.2.1")) {
		t.Errorf("the agent has not found the VIP in the other namespace, and put it on lo: %s(%v)", on, err)
	}
}

// serve answers clients.
func serve(t *testing.T, h *netlab.Host) {
	listener, err := h.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		io.WriteString(w, host)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
}

// podman runs containers without a daemon, from a store of its own.
type podman struct {
	t     *testing.T
	flags []string
	image string
	words func(t *testing.T, verb string) []string // of podman run
	file  string                                   // weir.yaml
}

func newPodman(t *testing.T, archive string) *podman {
	dir, err := os.MkdirTemp("", "weir-image")
	if err != nil {
		t.Fatal(err)
	}
	p := &podman{t: t, file: file, flags: []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "runroot"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs"}}
	// A container's monitor may still write there for a moment.
	t.Cleanup(func() { p.waitFor("its store to go", func() error { return os.RemoveAll(dir) }) })
	p.image = strings.TrimSpace(strings.TrimPrefix(p.must("load", "--quiet", "--input", archive), "Loaded image: "))
	return p
}

func (p *podman) command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, "podman", append(p.flags[:len(p.flags):len(p.flags)], args...)...)
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("podman %s: %w\n%s", args[0], err, complaints.Bytes())
	}
	return string(out), nil
}

func (p *podman) must(args ...string) string {
	p.t.Helper()
	out, err := p.command(args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// run starts a container of weir in a host's network, and returns a function that removes it.
func (p *podman) run(h *netlab.Host, verb string) (remove func()) {
	p.t.Helper()
	for _, dir := range []string{"etc", "run", "lib"} {
		if err := os.MkdirAll(filepath.Join(h.Dir(), dir), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(h.Dir(), "etc", "weir.yaml"), []byte(p.file), 0o644); err != nil {
		p.t.Fatal(err)
	}
	at := func(dir, where string) string { return filepath.Join(h.Dir(), dir) + ":" + where }
	name, monitor := h.Namespace(), filepath.Join(h.Dir(), "run", "monitor.pid")
	lineOf := verb
	if verb == "detach" || verb == "doctor" { // the director's line
		lineOf = "run"
	}
	words := p.words(p.t, lineOf)
	words[len(words)-1] = verb
	// The page has the version of a release, and "podman load" that of the archive.
	loaded, _, _ := strings.Cut(p.image, ":")
	image := words[len(words)-2]
	if !strings.HasPrefix(image, loaded+":") {
		p.t.Fatalf("docs/operate/install.md runs %s, and podman load says %s", image, p.image)
	}
	// What a host has, the lab's host has in a directory of its own.
	words = of(p.t, words, map[string]string{
		after(p.t, words, "--name"): name, "host": "ns:/run/netns/" + h.Namespace(), image: p.image,
		"/sys/fs/bpf:/sys/fs/bpf": h.BPFFS() + ":/sys/fs/bpf", "/etc/weir:/etc/weir:ro": at("etc", "/etc/weir:ro"),
		"/run/weir:/run/weir": at("run", "/run/weir"), "/var/lib/weir:/var/lib/weir": at("lib", "/var/lib/weir"),
	})
	p.must(append([]string{"run", "--no-hosts", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000",
		"--log-driver", "k8s-file", "--conmon-pidfile", monitor}, words...)...)
	removed := false
	remove = func() {
		if !removed {
			removed = true
			p.must("rm", "--force", "--time", "5", name)
			p.waitFor("what looks after the container to end", func() error { return alive(monitor) })
		}
	}
	p.t.Cleanup(func() {
		if p.t.Failed() && !removed {
			p.t.Logf("%s logged:\n%s", name, p.logged(h))
		}
		remove()
	})
	return remove
}

// alive reports whether the process is alive whose number is in a file.
func alive(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(text)))); err == nil {
		return fmt.Errorf("process %s runs", text)
	}
	return nil
}

// logged returns the log of the container in a host's network.
func (p *podman) logged(h *netlab.Host) string {
	logs, err := exec.Command("podman", append(p.flags[:len(p.flags):len(p.flags)], "logs", h.Namespace())...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", logs, err)
	}
	return string(logs)
}

// says runs a container until its log has a pattern, and returns the log.
func (p *podman) says(h *netlab.Host, verb, pattern string) (said string) {
	p.t.Helper()
	remove := p.run(h, verb)
	p.waitFor(verb+" to say "+pattern, func() error {
		if said = p.logged(h); !regexp.MustCompile(pattern).MatchString(said) {
			return fmt.Errorf("it says %q", said)
		}
		return nil
	})
	remove()
	return said
}

// waitFor waits until there is no error.
func (p *podman) waitFor(what string, wrong func() error) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // between two looks
		err := wrong()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited a minute for %s: %v", what, err)
		}
	}
}
