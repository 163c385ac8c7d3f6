package test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"weir.io/weir/lab/netlab"
)

// Large transfers complete both ways through every mode and family, from ordinary clients to
// ordinary servers, whatever the links' MTUs are: with 1500 everywhere an encapsulated full segment
// does not fit, so that the MSS must have been clamped; with 9000 everywhere segments are jumbo
// frames; and from a client with 1500 to servers with 9000 everything fits.
//
//	curl --- router --- switch --- director
//	                           --- nginx, nginx
func TestLargeTransfers(t *testing.T) {
	for name, s := range map[string]size{
		"1500":         {backends: 2},
		"9000":         {backends: 2, clientMTU: 9000, lanMTU: 9000},
		"1500 to 9000": {backends: 2, lanMTU: 9000},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, s)
			var roots []string
			for _, b := range l.backends {
				roots = append(roots, startNginx(t, b))
			}
			l.start(webServices(2)...)
			eachWay(t, func(t *testing.T, w way) {
				download(t, l.client, w, roots)
				upload(t, l.client, w, roots)
			})
		})
	}
}

// webServices returns a service at port 80 for every way.
func webServices(backends int) []string {
	var list []string
	for _, w := range ways {
		list = append(list, w.service("tcp", "80", everyBackend(backends)))
	}
	return list
}

const largeSize = 20 << 20

func download(t *testing.T, client *netlab.Host, w way, roots []string) {
	t.Helper()
	data := noise()
	for _, root := range roots {
		if err := os.WriteFile(filepath.Join(root, "large-"+w.String()), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(client.Dir(), "download-"+w.String())
	curl(t, client, "-o", path, w.url("large-"+w.String()))
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%s: the download has %d bytes (%v), want the %d that the server has", w, len(got), err, len(data))
	}
}

func upload(t *testing.T, client *netlab.Host, w way, roots []string) {
	t.Helper()
	data := noise()
	path := filepath.Join(client.Dir(), "upload-"+w.String())
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	curl(t, client, "-T", path, w.url("upload/"+w.String()))
	for _, root := range roots {
		if got, err := os.ReadFile(filepath.Join(root, "upload", w.String())); err == nil {
			if !bytes.Equal(got, data) {
				t.Errorf("%s: the server got %d bytes, not the %d that were sent", w, len(got), len(data))
			}
			return
		}
	}
	t.Errorf("%s: no server got the upload", w)
}

// curl runs curl on the client with a time limit.
func curl(t *testing.T, client *netlab.Host, args ...string) string {
	t.Helper()
	return on(t, client, "curl", append([]string{"--silent", "--show-error", "--fail", "--globoff", "--max-time", "50"}, args...)...)
}

func noise() []byte {
	data := make([]byte, largeSize)
	_, _ = rand.Read(data) // rand.Read never fails
	return data
}
