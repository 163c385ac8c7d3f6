package api

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// contentPolicy is what a page of the dashboard may do: use what comes from this director, but
// nothing inline.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// pageTypes are the content types of files by their names. The host's own list may differ.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// indexPage is the file that is the page at /.
const indexPage = "index.html"

// HandlePages serves files: index.html at /, and the others at their own names, which change with
// their contents, so that browsers need not ask for them twice. It is called before Serve.
func (s *Server) HandlePages(files fs.FS) {
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		at, caching := "/"+name, "public, max-age=31536000, immutable"
		if name == indexPage {
			at, caching = "/{$}", "no-cache" // that is: ask whether it is still this one
		}
		kind, known := pageTypes[path.Ext(name)]
		if !known {
			return fmt.Errorf("%s: nobody says what files of this type are", name)
		}
		s.HandleSegmented(at, newPage(name, kind, caching, content))
		return nil
	})
	if err != nil {
		panic(fmt.Sprintf("read the dashboard's files: %v", err)) // they are in the program
	}
}

// page is one file as it is sent.
type page struct {
	name, kind, caching, tag string
	content, packed          []byte
}

// packable is the least length of a file that is worth packing.
const packable = 512

func newPage(name, kind, caching string, content []byte) *page {
	sum := sha256.Sum256(content)
	p := &page{name: name, kind: kind, caching: caching, tag: hex.EncodeToString(sum[:12]), content: content}
	if len(content) < packable {
		return p
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		panic(err) // the level exists
	}
	_, _ = w.Write(content) // to memory: it cannot fail
	_ = w.Close()
	p.packed = packed.Bytes()
	return p
}

// ServeHTTP sends the file, packed if the client understands that, or says that it has not changed.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", p.kind)
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", p.caching)
	h.Set("Vary", "Accept-Encoding")
	content, tag := p.content, p.tag
	if p.packed != nil && understandsGzip(r.Header.Get("Accept-Encoding")) {
		content, tag = p.packed, p.tag+"-gzip"
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, p.name, time.Time{}, bytes.NewReader(content))
}

// understandsGzip reads Accept-Encoding, without weights except that of none.
func understandsGzip(accepts string) bool {
	for one := range strings.SplitSeq(accepts, ",") {
		coding, parameter, _ := strings.Cut(strings.TrimSpace(one), ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			weight := strings.ReplaceAll(parameter, " ", "")
			return weight == "" || strings.Trim(weight, "q=0.") != ""
		}
	}
	return false
}
