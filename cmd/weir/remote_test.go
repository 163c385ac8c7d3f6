package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/model"
)

// adminToken may do everything.
const adminToken = "admin-0123456789abcdef"

// remoteURL is where a director of these tests answers over TCP, in its own namespace.
const remoteURL = "https://127.0.0.1:6083"

// withAPI is a configuration whose API can be asked over TCP. It writes the files beside it.
func (h *host) withAPI(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "director"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:  x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"api.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"api.key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		"admin":   adminToken + "\n", "kube": "kube-0123456789abcdef\n",
	} {
		if err := os.WriteFile(h.beside(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "api: {listen: [\"127.0.0.1:6083\"], read-only: [\"127.0.0.1:6084\"], cert: " + h.beside("api.pem") + ", key: " + h.beside("api.key") +
		", clients: [{name: ops, role: admin, token-file: " + h.beside("admin") + "}, {name: kube, role: write, token-file: " + h.beside("kube") + "}]}\n"
}

// beside is a file in the directory of the configuration.
func (h *host) beside(name string) string { return filepath.Join(filepath.Dir(h.file), name) }

// Commands ask a director from elsewhere, if the named CA signed its certificate and it knows their
// token. Otherwise they say what is wrong, and end as the documents say.
func TestCommandsFromElsewhere(t *testing.T) {
	h := newHost(t)
	h.configure(h.withAPI(t)+onEth0, "web")
	p := h.start("director runs")
	defer p.stop()
	p.wait("the API to answer", func() bool {
		return h.weir("status", "--server", remoteURL, "--ca", h.beside("api.pem"), "--token-file", h.beside("admin")).Run() == nil
	})
	all := map[string]string{"WEIR_SERVER": remoteURL, "WEIR_CA": h.beside("api.pem"), "WEIR_TOKEN_FILE": h.beside("admin"), "WEIR_SOCKET": "/nowhere"}
	for _, c := range []struct {
		flags       []string
		environment map[string]string
		status      exitStatus
		says        string
	}{
		{[]string{"--server", remoteURL, "--ca", h.beside("api.pem"), "--token-file", h.beside("admin")}, nil, exitDone, "web "},
		{[]string{"--server", remoteURL, "--ca", h.beside("api.pem")}, nil, exitRefused, "show the token or the certificate"},
		{[]string{"--server", remoteURL, "--token-file", h.beside("admin")}, nil, exitUnreachable, "certificate"},
		{nil, all, exitDone, "web "},
		{[]string{"--token-file", h.file}, all, exitFailed, h.file},
		{nil, map[string]string{"WEIR_SOCKET": h.socket}, exitDone, "web "},
		// A flag that names the server replaces all of the environment.
		{[]string{"--socket", h.socket}, all, exitDone, "web "},
		{[]string{"--server", remoteURL, "--ca", h.beside("api.pem")}, all, exitRefused, "show the token or the certificate"},
		{[]string{"--ca", h.beside("api.pem")}, nil, exitUsage, "are for --server"},
	} {
		cmd := h.weir(append([]string{"services"}, c.flags...)...)
		for name, value := range c.environment {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := exitStatus(cmd.ProcessState.ExitCode()); got != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("weir services with %q and %v ends with %d and says\n%s\nwant %d and %q", c.flags, c.environment, got, out, c.status, c.says)
		}
	}
	got := h.problem(p, model.ProblemAPI)
	if got.Part != "refused" || got.Severity != model.SeverityWarning || got.Fix == "" ||
		!strings.HasPrefix(got.Text, `clients refuse the certificate in api.cert: 127.0.0.1 (asks for "127.0.0.1": `) {
		t.Errorf("of the client that does not trust the certificate the director says %+v", got)
	}
	if body := h.scrapes(h.socket); !strings.Contains(body, `weir_api_refused_total{cause="certificate"} 1`) {
		t.Error("metrics do not count the client that does not trust the certificate")
	}
}

// Commands of a tenant's client are about its own set, and say nothing that is not so.
func TestCommandsOfATenant(t *testing.T) {
	h := newHost(t)
	if err := os.WriteFile(h.beside("red"), []byte("red-0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	api := strings.Replace(h.withAPI(t), "clients: [", "clients: [{name: red, role: write, token-file: "+h.beside("red")+", segments: ['vlan:100']}, ", 1)
	service := func(name, segment, vip string) string {
		return "- {name: " + name + ", segment: '" + segment + "', vip: " + vip + ", protocol: tcp, port: 80, mode: l2dsr, backends: [{name: a, address: 10.0.0.2}]}\n"
	}
	if err := os.WriteFile(h.file, []byte(api+onEth0+"\nservices:\n"+service("red-web", "vlan:100", "203.0.113.10")+service("blue-web", "vlan:200", "203.0.113.10")), 0o600); err != nil {
		t.Fatal(err)
	}
	p := h.start("director runs")
	defer p.stop()
	asks := func(flags ...string) (string, error) {
		out, err := h.weir(append(flags, "--server", remoteURL, "--ca", h.beside("api.pem"), "--token-file", h.beside("red"))...).CombinedOutput()
		return string(out), err
	}
	p.wait("the API to answer", func() bool { _, err := asks("status"); return err == nil })
	set := func(name, segment string) string {
		path := h.beside("set.yaml")
		if err := os.WriteFile(path, []byte("services:\n"+service(name, segment, "203.0.113.11")), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		command []string
		done    bool
		says    []string
		not     []string
	}{
		{[]string{"plan", "-f", set("red-api", "vlan:100"), "--measure", "0"}, true, []string{"red-api"}, []string{"LIMIT"}},
		{[]string{"explain", "198.51.100.7:5555", "203.0.113.11:80/tcp", "--segment", "vlan:100", "--set", set("red-api", "vlan:100")}, true, []string{"red-api"}, nil},
		{[]string{"apply", "-f", set("red-api", "vlan:100"), "--measure", "0"}, true, []string{"applied, as the set of owner red\n"}, []string{"LIMIT", "revision 0"}},
		{[]string{"apply", "-f", set("red-api", "vlan:100"), "--measure", "0", "--owner", "cli"}, false, []string{`red may write the set of owner "red", and this is about that of owner "cli"`}, nil},
		{[]string{"status"}, true, []string{"services          2\n", "is told of them"}, []string{"0001", " of 0", "process", "no version of it"}},
		{[]string{"drain", "red-api/a"}, true, []string{"red-api", "draining"}, nil},
		{[]string{"drain", "red-web/a"}, false, []string{`there is no service "red-web" in the set of owner "red": service "red-web" is not of that set`}, nil},
		{[]string{"drain", "blue-web/a"}, false, []string{`there is no service "blue-web"` + "\n"}, nil},
		{[]string{"explain", "198.51.100.7:5555", "203.0.113.11:80/tcp"}, false, []string{"red is for the segments vlan:100 alone, and this packet is not in them, but in segment none: give it one of them"}, nil},
	} {
		out, err := asks(c.command...)
		if (err == nil) != c.done {
			t.Errorf("weir %q: %v\n%s", c.command, err, out)
		}
		for _, words := range c.says {
			if !strings.Contains(out, words) {
				t.Errorf("weir %q does not say %q:\n%s", c.command, words, out)
			}
		}
		for _, words := range c.not {
			if strings.Contains(out, words) {
				t.Errorf("weir %q says %q:\n%s", c.command, words, out)
			}
		}
	}
	if out, err := asks("apply", "-f", set("red-api", "vlan:200"), "--measure", "0"); err == nil || !strings.Contains(out, "services[0].segment: the VIP is in segment vlan:200") || strings.Contains(out, "backends[0]") {
		t.Errorf("of a service in another segment apply says %v\n%s", err, out)
	}
}

// Doctor on a backend's host asks each director whether it takes the agent's reports, and says why one does not.
func TestDoctorAsksDirectorsForReports(t *testing.T) {
	h := newHost(t)
	for name, token := range map[string]string{"vm": "vm-0123456789abcdef\n", "stranger": "stranger-0123456789abcdef\n"} {
		if err := os.WriteFile(h.beside(name), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	served := h.withAPI(t)
	file := func(token, segment string) {
		clients := strings.Replace(served, "clients: [", "clients: [{name: vm, role: agent, addresses: [10.0.0.1], segment: "+segment+", token-file: "+h.beside("vm")+"}, ", 1)
		text := clients + onEth0 + "\nagent: {interfaces: [eth0], store: {directors: {endpoints: ['" + remoteURL + "'], ca: " + h.beside("api.pem") + ", token-file: " + h.beside(token) + "}}}\n" +
			"directors: [10.0.0.1]\nservices:\n- {name: web, segment: 'vlan:100', vip: 203.0.113.1, protocol: tcp, port: 80, mode: gue, backends: [{address: 10.0.0.1, segment: 'vlan:100'}, {address: 10.0.0.2, segment: 'vlan:100'}]}\n"
		if err := os.WriteFile(h.file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	doctor := func() string {
		out, _ := h.exits("doctor", "-c", h.file, "--role", "agent", "--socket", h.socket, "--agent-socket", h.beside("none.sock"), "--bpffs", h.bpffs)
		return out
	}
	file("vm", "vlan:100")
	p := h.start("director runs")
	defer p.stop()
	p.wait("the API to answer", func() bool {
		return h.weir("status", "--server", remoteURL, "--ca", h.beside("api.pem"), "--token-file", h.beside("admin")).Run() == nil
	})
	wantLines(t, doctor(), "ok reports to "+remoteURL+" takes reports of 10.0.0.1 in vlan:100, about 1 service")
	file("stranger", "vlan:100")
	if out := doctor(); !strings.Contains(out, "no client of api.clients has the token that was shown; fix: see that agent.store.directors is right") {
		t.Errorf("with another token doctor says\n%s", out)
	}
	file("vm", "vlan:200")
	p.wait("the director to take reports of another segment", func() bool {
		return strings.Contains(doctor(), "it takes reports of 10.0.0.1 in vlan:200, and the backends of this host are [10.0.0.1 in vlan:100]")
	})
}
