package api_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// anyReports takes every report.
type anyReports struct{}

func (anyReports) Reportable(of *api.Reporter) api.Reportable {
	return api.Reportable{Segment: of.Segment, Addresses: []netip.Addr{of.V4}}
}
func (anyReports) PutReport(context.Context, *api.Reporter, []byte) (api.PutReport, error) {
	return api.PutReport{Shared: true}, nil
}
func (anyReports) PutLoads(*api.Reporter, *api.LoadReport) error { return nil }

const agentToken, otherAgentToken = "agent-0123456789abcdef", "other-0123456789abcdef"

// startRemoteWith is startRemote with all operations, and agents.
func startRemoteWith(t *testing.T, reports api.Reports) *remote {
	t.Helper()
	a := newAuthority(t)
	a.issue(t, "director", "director")
	server := everythingWith(reports)
	server.Handle("/metrics", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("up 1\n")) }))
	server.Handle("/{$}", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a page")) }))
	r := &remote{authority: a, server: server, remote: api.NewRemote(server, quiet())}
	t.Cleanup(r.remote.Close)
	at := netip.MustParseAddr("172.16.0.11")
	r.config = model.API{Listen: []netip.AddrPort{freePort(t)}, Cert: a.path("director.pem"), Key: a.path("director.key"),
		Clients: []model.APIClient{
			{Name: "vm", Role: model.RoleAgent, TokenFile: a.write(t, "vm", agentToken), Addresses: []netip.Addr{at}, Segment: model.Segment{Kind: model.SegmentVLAN, ID: 100}},
			{Name: "other", Role: model.RoleAgent, TokenFile: a.write(t, "other", otherAgentToken), Addresses: []netip.Addr{at}, Segment: model.Segment{Kind: model.SegmentVLAN, ID: 200}},
			{Name: "dashboard", Role: model.RoleRead, TokenFile: a.write(t, "read", readToken)},
			{Name: "kube", Role: model.RoleWrite, TokenFile: a.write(t, "kube", kubeToken)},
			{Name: "ops", Role: model.RoleAdmin, TokenFile: a.write(t, "admin", adminToken)},
		}}
	r.set(t)
	return r
}

// report sends one as the client with a token.
func (r *remote) report(t *testing.T, token string, body io.Reader, media string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://"+r.config.Listen[0].String()+"/v1/report", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", media)
	request.Header.Set("Expect", "100-continue") // so that no body is sent that is refused by its length
	response, err := r.client(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(answer)
}

// Of all that a director answers an agent may ask what it may report, and report it. What is added later is refused,
// too, unless it is added here.
func TestAgentMayOnlyReport(t *testing.T) {
	r := startRemoteWith(t, anyReports{})
	text, err := r.server.Document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	if len(document.Paths) < 18 {
		t.Fatalf("there are only %d paths", len(document.Paths))
	}
	// Many agents ask, because one may not ask so often.
	const agents = 10
	for i := range agents {
		token := fmt.Sprintf("%s-%d", agentToken, i)
		r.config.Clients = append(r.config.Clients, model.APIClient{Name: fmt.Sprint("vm", i), Role: model.RoleAgent, TokenFile: r.write(t, token, token),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, 1, byte(i)})}})
	}
	r.set(t)
	paths := []string{"/", "/metrics", "/v1/openapi.json"}
	for path := range document.Paths {
		paths = append(paths, strings.ReplaceAll(path, "{owner}", "vm"))
	}
	may := map[string]int{"GET /v1/report": http.StatusOK, "HEAD /v1/report": http.StatusOK, "PUT /v1/report": http.StatusOK, "PUT /v1/loads": http.StatusOK}
	found := 0
	for i, path := range paths {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"} {
			got := r.asks(t, fmt.Sprintf("Bearer %s-%d", agentToken, i%agents), method, path)
			if want, is := may[method+" "+path]; is {
				found++
				if got.StatusCode != want {
					t.Errorf("%s %s gives %s", method, path, got.Status)
				}
				continue
			}
			if got.StatusCode != http.StatusForbidden && got.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("an agent's %s %s gives %s", method, path, got.Status)
			}
		}
	}
	if found != len(may) {
		t.Errorf("of %d things that an agent may do %d are there", len(may), found)
	}
}

// Nobody else may report: not even an administrator has a backend.
func TestOnlyAgentsReport(t *testing.T) {
	r := startRemoteWith(t, anyReports{})
	for _, token := range []string{readToken, kubeToken, adminToken} {
		for _, method := range []string{"GET", "PUT"} {
			if got := r.asks(t, "Bearer "+token, method, "/v1/report"); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s /v1/report as %s gives %s", method, token, got.Status)
			}
		}
	}
	if got := r.asks(t, "", "PUT", "/v1/report"); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger's report gives %s", got.Status)
	}
}

// An agent that reports as often as it can is told to wait, and others are not.
func TestAgentReportsTooOften(t *testing.T) {
	r := startRemoteWith(t, anyReports{})
	counts := map[int]int{}
	for range 12 {
		status, _ := r.report(t, agentToken, strings.NewReader("{}"), "application/json")
		counts[status]++
	}
	if counts[http.StatusOK] < 1 || counts[http.StatusOK] > 7 || counts[http.StatusTooManyRequests] < 5 {
		t.Errorf("of 12 reports at once %v", counts)
	}
	if status, text := r.report(t, otherAgentToken, strings.NewReader("{}"), "application/json"); status != http.StatusOK {
		t.Errorf("another agent's report gives %d: %s", status, text)
	}
}

func TestReportBodies(t *testing.T) {
	r := startRemoteWith(t, anyReports{})
	for name, test := range map[string]struct {
		body  io.Reader
		media string
		want  int
	}{
		"too long":                   {bytes.NewReader(make([]byte, 1<<20+1)), "application/json", http.StatusRequestEntityTooLarge},
		"too long, without a length": {io.LimitReader(zeros{}, 1<<20+1), "application/json", http.StatusRequestEntityTooLarge},
		"no JSON":                    {strings.NewReader("a: b"), "application/yaml", http.StatusUnsupportedMediaType},
	} {
		if status, text := r.report(t, agentToken, test.body, test.media); status != test.want {
			t.Errorf("a report that is %s gives %d: %s", name, status, text)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// slow waits with each report until it is told.
type slow struct {
	anyReports
	began chan string
	goOn  chan struct{}
}

func (s slow) PutReport(_ context.Context, from *api.Reporter, _ []byte) (api.PutReport, error) {
	s.began <- from.Name
	<-s.goOn
	return api.PutReport{}, nil
}

// An agent has few requests at a time, so that it takes no place from others.
func TestAgentAsksAtOnce(t *testing.T) {
	s := slow{began: make(chan string, 100), goOn: make(chan struct{})}
	r := startRemoteWith(t, s)
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() { _, _ = r.report(t, agentToken, strings.NewReader("{}"), "application/json") })
	}
	for range 4 {
		<-s.began
	}
	if status, text := r.report(t, agentToken, strings.NewReader("{}"), "application/json"); status != http.StatusTooManyRequests {
		t.Errorf("the fifth request at once gives %d: %s", status, text)
	}
	if got := r.asks(t, "Bearer "+otherAgentToken, "GET", "/v1/report"); got.StatusCode != http.StatusOK {
		t.Errorf("another agent's question gives %s", got.Status)
	}
	close(s.goOn)
	asking.Wait()
}

// Agents that hold all connections of the API keep no other client out: what they do not use goes, as a stranger's.
func TestAgentsHoldNoConnections(t *testing.T) {
	r := startRemoteWith(t, anyReports{})
	const agents = 8
	for i := range agents {
		token := fmt.Sprintf("%s-%d", agentToken, i)
		r.config.Clients = append(r.config.Clients, model.APIClient{Name: fmt.Sprint("vm", i), Role: model.RoleAgent, TokenFile: r.write(t, token, token),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, 1, byte(i)})}})
	}
	r.set(t)
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}
	config.RootCAs.AddCert(r.cert)
	for i := range mostConnections {
		h, err := hold("127.0.0.1", r.config.Listen[0], config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		request := httptest.NewRequest(http.MethodGet, "/v1/report", nil)
		request.Host = "127.0.0.1"
		request.Header.Set("Authorization", fmt.Sprintf("Bearer %s-%d", agentToken, i%agents))
		if err := request.Write(h); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(h.read, request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("an agent's question is answered with %v (%v)", response, err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
	}
	began := time.Now()
	for range 3 {
		if got := r.asks(t, "Bearer "+readToken, "GET", "/v1/status"); got.StatusCode != http.StatusOK {
			t.Errorf("while agents hold all connections an operator gets %s", got.Status)
		}
	}
	if waited := time.Since(began); waited > hangs {
		t.Errorf("an operator has waited for %v", waited)
	}
}
