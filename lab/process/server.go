package process

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weir.io/weir/lab/netlab"
)

var errNoListener = errors.New("no program listens there")

// Serve starts a server on a host, and returns when it listens at a TCP port: at that address, or
// at any of the host's if the address is missing.
func Serve(ctx context.Context, host *netlab.Host, name string, at netip.AddrPort, program string, args ...string) (*Process, error) {
	p, err := Start(host, name, program, args...)
	if err != nil {
		return nil, err
	}
	filter := []string{"sport", "=", fmt.Sprintf(":%d", at.Port())}
	if at.Addr().IsValid() {
		filter = []string{"src", at.String()}
	}
	return p, p.Await(ctx, "listen", func() error {
		out, err := Run(ctx, host, "ss", append([]string{"-Hltn"}, filter...)...)
		if err == nil && out == "" {
			return errNoListener
		}
		return err
	})
}

// Nginx serves with nginx as Serve does. The text is its configuration, without what all labs say
// alike; launcher is a command that runs nginx, such as chrt with its arguments.
func Nginx(ctx context.Context, host *netlab.Host, name string, at netip.AddrPort, text string, launcher ...string) (*Process, error) {
	conf, err := Configure(host, name+".conf", fmt.Sprintf("daemon off; user root; pid DIR/%[1]s.pid; error_log DIR/%[1]s.err;\n%[2]s", name, text))
	if err != nil {
		return nil, err
	}
	command := append(launcher, "nginx", "-e", "stderr", "-c", conf)
	return Serve(ctx, host, name, at, command[0], command[1:]...)
}

// NginxTemporary is what nginx's block http needs to write nowhere but to its host's directory.
const NginxTemporary = "client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;"

// Configure writes a file into the host's directory, and returns its path. DIR in the text becomes
// that directory.
func Configure(host *netlab.Host, name, text string) (string, error) {
	path := filepath.Join(host.Dir(), name)
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", host.Dir())+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("configuration of %s: %w", host.Name, err)
	}
	return path, nil
}

// Sleep waits for that long, or until the context ends, which is an error.
func Sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
