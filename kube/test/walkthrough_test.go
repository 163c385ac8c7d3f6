package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weir.io/weir/internal/api"
	"weir.io/weir/lab/netlab"
)

// The first steps of docs/operate/kubernetes-directors.md, done as they are written there: its commands,
// its director's file, its values of the chart and its objects, with nodes that have only a
// kube-proxy, and a client on their link.
//
//	client --- switch --- director
//	                  --- pod1 (node1) pod2 (node2)
//	                  --- control
func TestWalkThrough(t *testing.T) {
	needsAPIServer(t)
	n := netlab.ForTest(t)
	l := &lab{net: n, client: n.Host("client"), director: n.Router("director"), lan: n.Switch("switch")}
	n.Link(l.client, l.lan, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.77/24"}})
	n.Link(l.director, l.lan, netlab.LinkOptions{XDP: true, A: []string{"10.2.0.2/24"}})
	runOn(t, l.client, "ip", "route", "add", "203.0.113.0/26", "dev", "eth0")
	for i := 1; i <= 2; i++ {
		node := n.Host(fmt.Sprintf("pod%d", i))
		n.Link(node, l.lan, netlab.LinkOptions{XDP: true, A: []string{podAddress(i) + "/24"}})
		serve(t, node)
		l.servers = append(l.servers, node)
	}
	host := n.Host("control")
	n.Link(host, l.lan, netlab.LinkOptions{XDP: true, A: []string{controlAddress + "/24"}})
	if err := n.Err(); err != nil {
		t.Fatal(err)
	}
	dir := l.director.Dir()
	d := newDocument(t, strings.NewReplacer("/etc/weir", filepath.Join(dir, "etc"), "10.0.0.", "10.2.0."))

	// The director.
	command := l.director.Command(t.Context(), "bash", "-euo", "pipefail", "-c", d.block("sh", "openssl"))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("the token and the certificate: %v\n%s", err, out)
	}
	file, socket := filepath.Join(dir, "etc", "weir.yaml"), filepath.Join(dir, "director.sock")
	if err := os.WriteFile(file, []byte(d.block("yaml", "director:")), 0o600); err != nil {
		t.Fatal(err)
	}
	if commands := d.block("sh", "weir doctor"); !strings.Contains(commands, "weir doctor -c "+file+"\nweir run -c "+file) {
		t.Fatalf("the director is looked at and started by %q", commands)
	}
	if out, err := l.director.Command(t.Context(), weir, "doctor", "-c", file).CombinedOutput(); err != nil {
		t.Errorf("weir doctor: %v\n%s", err, out)
	}
	start(t, l.director, filepath.Join(dir, "run.log"), weir, "run", "-c", file, "--bpffs", l.director.BPFFS(), "--socket", socket)
	l.api = api.NewClient(socket)
	waitFor(t, "the director to answer", func() bool { _, err := l.api.Status(t.Context()); return err == nil })

	// The controller, as the chart starts it.
	l.cluster = newCluster(t, host)
	t.Cleanup(l.logEvents)
	l.applyResources()
	l.makeSystem()
	values := l.write("values.yaml", d.block("yaml", "image:"))
	objects := l.applyChart("--values", values)
	var config corev1.ConfigMap
	fromYAML(t, []byte(objects["ConfigMap"]), &config)
	secret := filepath.Join(l.dir, "directors")
	if err := os.MkdirAll(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	for key, from := range d.secret() {
		if err := os.WriteFile(filepath.Join(secret, key), []byte(l.read(filepath.Join(dir, "etc", from))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.config = l.write("weir-kube.yaml", strings.ReplaceAll(config.Data["weir-kube.yaml"], "/etc/weir/directors", secret))
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	l.controller("one")

	// Nodes with their pods, addresses, and the Service.
	for i, node := range l.servers {
		l.node(node, i+1, podAddress(i+1))
	}
	for one := range strings.SplitSeq(d.block("yaml", "apiVersion: weir.io/v1alpha1\nkind: AddressPool"), "\n---\n") {
		if kind, name, err := l.make(one); err != nil {
			t.Fatalf("make the %s %s: %v", kind, name, err)
		}
	}
	l.podsOnNodes("web", 1, 2)
	asked := d.asked()
	l.waitForAddresses("web", asked)
	l.reaches(asked, "pod1", "pod2")
	for _, line := range []string{"weir services", "weir explain 10.2.0.77:5555 " + asked + ":80/tcp"} {
		if !strings.Contains(d.block("console", "kubectl get service web"), "$ "+line) {
			t.Errorf("the document does not ask %q", line)
		}
		args := append(strings.Fields(line)[1:], "--socket", socket)
		out, err := exec.Command(weir, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "default/web/80-tcp") {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

// document is a section of a document, with other paths and addresses.
type document struct {
	t    *testing.T
	file string
	text string
}

func newDocument(t *testing.T, replacer *strings.Replacer) *document {
	t.Helper()
	return newSection(t, "operate/kubernetes-directors.md", "From nothing to a reachable Service", replacer)
}

// newSection returns a section of a document.
func newSection(t *testing.T, file, title string, replacer *strings.Replacer) *document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", file))
	if err != nil {
		t.Fatal(err)
	}
	_, steps, found := strings.Cut(string(text), "\n## "+title+"\n")
	if steps, _, _ = strings.Cut(steps, "\n## "); !found {
		t.Fatalf("docs/%s has no section %q", file, title)
	}
	return &document{t, file, replacer.Replace(steps)}
}

// block returns the first code block of a language that has this at the beginning of a line.
func (d *document) block(language, with string) string {
	d.t.Helper()
	for _, match := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(d.text, -1) {
		if lines := "\n" + strings.ReplaceAll(match[1], "\n$ ", "\n"); strings.Contains(lines, "\n"+with) || strings.Contains(match[1], "$ "+with) {
			return match[1]
		}
	}
	d.t.Fatalf("docs/%s shows no %s with %q", d.file, language, with)
	return ""
}

// secret returns the keys of the controller's Secret, each with the director's file that it holds.
func (d *document) secret() map[string]string {
	d.t.Helper()
	files := map[string]string{}
	for _, match := range regexp.MustCompile(`--from-file=([^=\s]+)=(\S+)`).FindAllStringSubmatch(d.block("console", "kubectl create namespace"), -1) {
		files[match[1]] = match[2]
	}
	if len(files) == 0 {
		d.t.Fatalf("docs/%s makes no Secret of files", d.file)
	}
	return files
}

// asked returns the address that the document asks in the end.
func (d *document) asked() string {
	d.t.Helper()
	match := regexp.MustCompile(`curl http://([0-9.]+)/`).FindStringSubmatch(d.text)
	if match == nil {
		d.t.Fatalf("docs/%s asks nobody", d.file)
	}
	return match[1]
}
