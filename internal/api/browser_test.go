package api_test

import (
	"encoding/base64"
	"net/http"
	"slices"
	"testing"

	"weir.io/weir/internal/api"
	"weir.io/weir/internal/model"
)

// basic is what a browser shows after somebody has typed a name and a token.
func basic(name, token string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+token))
}

// A browser logs in by the name and the token of a client, has its role, and is forgotten.
func TestBrowserLogsIn(t *testing.T) {
	r := startRemote(t)
	for _, test := range []struct {
		who, method, path string
		want              int
	}{
		{basic("dashboard", readToken), "GET", "/v1/services", 200},
		{basic("dashboard", readToken), "PUT", "/v1/sets/web", 403},
		{basic("kube", kubeToken), "PUT", "/v1/sets/kube", 200},
		{basic("kube", kubeToken), "PUT", "/v1/sets/web", 403},
		{basic("ops", adminToken), "PUT", "/v1/sets/web", 200},
		{basic("ops", readToken), "GET", "/v1/services", 401}, // somebody else's
		{basic("dashboard", readToken+"x"), "GET", "/v1/services", 401},
		{basic("dashboard", ""), "GET", "/v1/services", 401},
		{basic("", readToken), "GET", "/v1/services", 401},
		{basic("team", ""), "GET", "/v1/services", 401}, // a caller that has only a certificate
		{basic("dashboard", "sha256:"+readToken), "GET", "/v1/services", 401},
		{basic("dashboard", readToken), "GET", "/logout", 401},
		{"Bearer " + readToken, "GET", "/logout", 404}, // there is nothing to forget
	} {
		got := r.asks(t, test.who, test.method, test.path)
		if got.StatusCode != test.want {
			t.Errorf("%s: %s %s gives %s, want %d", test.who, test.method, test.path, got.Status, test.want)
		}
		asks := slices.Contains(got.Header.Values("WWW-Authenticate"), `Basic realm="weir", charset="UTF-8"`)
		if asks != (test.want == http.StatusUnauthorized) {
			t.Errorf("%s: %s %s asks for %q", test.who, test.method, test.path, got.Header.Values("WWW-Authenticate"))
		}
		if name := got.Header.Get("Weir-Client"); name != "" && test.want == http.StatusUnauthorized {
			t.Errorf("a stranger hears that it is %s", name)
		}
	}
	if got := r.asks(t, basic("ops", adminToken), "GET", "/v1/services").Header.Get("Weir-Client"); got != "ops" {
		t.Errorf("it is called %q, want ops", got)
	}
}

// A request that a page of another origin makes a browser send is refused, whatever
// the browser's credentials are. A link to the director may be followed, and programs
// send no headers about pages.
func TestPagesOfOthersMayNotAsk(t *testing.T) {
	r := startRemote(t)
	own := "https://" + r.config.Listen[0].String()
	type headers map[string]string
	for _, test := range []struct {
		method, path string
		headers      headers
		want         int
	}{
		{"GET", "/v1/services", headers{}, 200},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403},
		{"GET", "/v1/services", headers{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403},
		{"PUT", "/v1/sets/kube", headers{}, 200},
		{"PUT", "/v1/sets/kube", headers{"Origin": own, "Sec-Fetch-Site": "same-origin"}, 200},
		{"PUT", "/v1/sets/kube", headers{"Origin": own}, 200},
		{"PUT", "/v1/sets/kube", headers{"Origin": "https://evil.example.org"}, 403},
		{"PUT", "/v1/sets/kube", headers{"Origin": "null"}, 403},
		{"PUT", "/v1/sets/kube", headers{"Sec-Fetch-Site": "cross-site"}, 403},
		{"POST", "/v1/plan?owner=kube", headers{"Origin": own, "Sec-Fetch-Site": "same-site"}, 403},
		{"POST", "/v1/plan?owner=kube", headers{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403},
	} {
		for _, who := range []string{basic("kube", kubeToken), "@kube-by-certificate"} {
			if who[0] == '@' {
				r.issue(t, who[1:], "kube.example.org")
			}
			if got := r.asksWith(t, who, test.method, test.path, test.headers); got.StatusCode != test.want {
				t.Errorf("%s: %s %s with %q gives %s, want %d", who, test.method, test.path, test.headers, got.Status, test.want)
			}
		}
	}
}

// When the files no longer have a client, its endless answers end.
func TestReplacedTokensHearTheEnd(t *testing.T) {
	r := startRemote(t)
	replaced, err := api.NewRemoteClient(api.RemoteOptions{URL: "https://" + r.config.Listen[0].String(), CA: r.path("ca.pem"),
		TokenFile: r.write(t, "token", adminToken)})
	if err != nil {
		t.Fatal(err)
	}
	began, ended := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		ended <- replaced.Capture(t.Context(), model.Capture{Reasons: []string{"drop_no_backend"}}, func(*model.CaptureMessage) error {
			began <- struct{}{}
			return nil
		})
	}()
	select {
	case <-began:
	case err := <-ended:
		t.Fatalf("the capture ends at once with %v", err)
	}
	r.write(t, "read", "other-0123456789abcdef") // somebody else's
	r.set(t)
	select {
	case err := <-ended:
		t.Fatalf("the token of another client is replaced, and the capture ends with %v", err)
	default:
	}
	r.write(t, "admin", "another-0123456789abcdef")
	r.set(t)
	t.Logf("the capture ends with %v", <-ended) // without its token it does
	if got := r.asks(t, basic("ops", adminToken), "GET", "/v1/services"); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("the old token gives %s", got.Status)
	}
}
