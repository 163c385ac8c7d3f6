package store

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.io/weir/internal/etcdclient"
	"weir.io/weir/internal/model"
	"weir.io/weir/lab/etcdlab"
)

// Files that are missing or are not what they should be are waited for: somebody renews them.
func TestEtcdFilesMayComeLater(t *testing.T) {
	c := newCluster(t, 1, true)
	put(t, c.open(), "cli", service("a", 1, 1))
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	for name, test := range map[string]struct {
		change func(o *etcdclient.Options, file string)
		text   string // that the file gets
		says   string
	}{
		"CA":          {func(o *etcdclient.Options, file string) { o.CA = file }, contentOf(t, c.options.CA), "read the CA of etcd"},
		"certificate": {func(o *etcdclient.Options, file string) { o.Cert = file }, contentOf(t, c.options.Cert), "read the client certificate for etcd"},
		"key":         {func(o *etcdclient.Options, file string) { o.Key = file }, contentOf(t, c.options.Key), "read the client certificate for etcd"},
		"password":    {func(o *etcdclient.Options, file string) { o.Password, o.PasswordFile = "", file }, c.Password + "\n", "read the password for etcd"},
	} {
		options, file := c.options, password+"-"+name
		test.change(&options, file)
		e := c.openWith(options, "")
		if _, err := e.Read(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("without its file the error is %v, want %q", err, test.says)
		}
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		etcdlab.Eventually(t, name+" is used when its file is there", func() error {
			_, err := e.Read(t.Context())
			return err
		})
	}
}

func contentOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A director follows its group when all certificates are renewed, the CA too, and etcd is started
// anew with them: also if it has read the files meanwhile when they were half written.
func TestEtcdGetsAnotherCA(t *testing.T) {
	c := newCluster(t, 1, true)
	e := c.open()
	put(t, e, "cli", service("a", 1, 1))
	states := e.Watch(t.Context())
	next(t, states, func(s State) bool { return s.Revision == 1 })
	c.kill(0)
	for _, file := range []string{c.CA, c.Cert} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := e.Read(soon); err == nil {
		t.Fatal("an etcd that is down is read")
	}
	c.Reissue(time.Hour)
	c.start(0)
	etcdlab.Eventually(t, "a change with the new certificates", func() error {
		_, err := e.Update(t.Context(), Replace("kube", []model.Service{service("k", 5, 1)}, count))
		return err
	})
	next(t, states, func(s State) bool { return s.Revision == 2 })
}

// A certificate that has ended is a problem while the connection that was made with it goes on: the
// next one would fail. It is none any more when it is renewed.
func TestEtcdCertificateEnds(t *testing.T) {
	// Without a password, for which each watch would make a connection.
	c := &cluster{Cluster: etcdlab.New(t, etcdlab.Options{Members: 1, Secure: true}), t: t}
	problems := make(chan error, 64)
	c.options = etcdclient.Options{Endpoints: c.Endpoints, Prefix: c.Prefix, CA: c.CA, Cert: c.Cert, Key: c.Key, Log: slog.New(slog.DiscardHandler),
		Warn: func(_ model.ProblemKind, part string, err error) {
			if part == partCertificates {
				problems <- err
			}
		}}
	e := c.open()
	states := e.Watch(t.Context())
	next(t, states, func(State) bool { return true })
	heard := func(want string) {
		t.Helper()
		for {
			select {
			case err := <-problems:
				if (err == nil) == (want == "") && (err == nil || strings.Count(err.Error(), want) == 2) {
					return
				}
			case <-time.After(patience):
				t.Fatalf("never heard of the CA and the certificate: %q", want)
			}
		}
	}
	heard("")
	c.Reissue(-time.Minute)
	put(t, e, "cli", service("a", 1, 1))
	heard("the certificate has ended on")
	c.Reissue(time.Hour)
	put(t, e, "cli", service("a", 1, 2))
	heard("")
}
