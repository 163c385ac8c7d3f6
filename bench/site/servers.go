package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir.io/weir/lab/process"
)

// requestsPerConnection is what nginx allowed when the paper with these figures was written.
const requestsPerConnection = 100

// startServers runs nginx on every server: it answers with its host's name.
func (s *Site) startServers(ctx context.Context) error {
	var listen strings.Builder
	for _, n := range s.sizes {
		fmt.Fprintf(&listen, "listen %d backlog=8192; ", natPort(n))
	}
	for _, h := range slices.Concat(s.servers, s.agents) {
		text := fmt.Sprintf(`master_process off;
events { worker_connections 16384; }
http {
	access_log off; keepalive_requests %d; default_type text/plain; %s
	server { listen 80 backlog=8192; listen [::]:80 backlog=8192; %s location / { return 200 "%s"; } }
}`, requestsPerConnection, process.NginxTemporary, &listen, h.Name)
		if _, err := process.Nginx(ctx, h, "nginx", webPort, text); err != nil {
			return err
		}
	}
	return nil
}

// checkSpread asks every VIP until each of its servers, and no other, has answered: then
// measurements are of what their names say.
func (s *Site) checkSpread(ctx context.Context) error {
	for _, w := range ways {
		hosts := s.servers
		if w.weir && !w.nat() {
			hosts = s.agents
		}
		for _, n := range s.sizes {
			missing := map[string]bool{}
			for _, h := range hosts[:n] {
				missing[h.Name] = true
			}
			if err := s.ask(ctx, w.URL(n), missing); err != nil {
				return fmt.Errorf("%s %s over %d servers: %w", w.Name, w.Family(), n, err)
			}
		}
	}
	return nil
}

// askTime bounds the search for all servers of a VIP.
const askTime = 10 * time.Second

// ask requests a page, over a connection each, until all of these servers have
// answered.
func (s *Site) ask(ctx context.Context, url string, missing map[string]bool) error {
	client := &http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{DialContext: s.Client.DialContext, DisableKeepAlives: true}}
	expected := len(missing)
	seen := map[string]bool{}
	for deadline := time.Now().Add(askTime); len(seen) < expected; {
		if time.Now().After(deadline) {
			return fmt.Errorf("only %v of %d servers answered", seen, expected)
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		name, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		if !missing[string(name)] {
			return fmt.Errorf("%q answered, whose VIP it is not", name)
		}
		seen[string(name)] = true
	}
	return nil
}
