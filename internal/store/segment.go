package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"weir.io/weir/internal/etcdclient"
)

// A group's state can be larger than what etcd takes at once (1.5 MB and 128
// operations in a transaction): 4,096 services of 64 backends are some 30 MB. So a set
// is cut into segments, which are named by their content and written first; then one
// small key, the root, is switched from the old names to the new ones.

// segment is a sequence of an owner's documents.
type segment struct {
	name      string // the SHA-256 of its text
	text      []byte // JSON, a document to a line
	documents []Document
	size      int // bytes that the documents take
}

// Where a set is cut: after a document whose ID hashes to a multiple of cutModulus, so that a
// service that comes or goes changes one segment and not all that follow; and where a segment would
// else be longer than this many bytes.
const (
	cutModulus  = 8
	cutLength   = 256 << 10
	nameProblem = "its content is not what its name says"
)

// cut returns the segments of a set.
func cut(set Set) ([]segment, error) {
	var list []segment
	var open segment
	end := func() {
		if len(open.documents) > 0 {
			open.name = nameOf(open.text)
			list = append(list, open)
			open = segment{}
		}
	}
	for _, d := range set.Documents {
		line, err := json.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("encode service %q: %w", d.Service.Name, err)
		}
		if len(open.text)+len(line) > cutLength {
			end()
		}
		open.text = append(append(open.text, line...), '\n')
		open.documents = append(open.documents, d)
		if cutsAfter(d) {
			end()
		}
	}
	end()
	return list, nil
}

func cutsAfter(d Document) bool {
	sum := sha256.Sum256([]byte(named(d.Service.ID())))
	return binary.BigEndian.Uint64(sum[:])%cutModulus == 0
}

func nameOf(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// mostState is how many bytes the segments of a group's sets may have together: twice the largest set
// that the API takes.
const mostState = etcdclient.MostAnswer

// mostDocuments is how many bytes the documents of all sets may take when they are read, and those
// of one segment: a few bytes of text may stand for many.
const (
	mostDocuments = 1 << 30
	mostSegment   = 256 << 20
)

// newSegment reads a segment's text and checks that its name matches.
func newSegment(name string, text []byte) (segment, error) {
	if nameOf(text) != name {
		return segment{}, fmt.Errorf("segment %s: %s", name, nameProblem)
	}
	s := segment{name: name, text: text}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	for {
		var d Document
		if err := decoder.Decode(&d); errors.Is(err, io.EOF) {
			return s, nil
		} else if err != nil {
			return segment{}, fmt.Errorf("segment %s: %w", name, err)
		}
		if s.size += d.Size(); s.size > mostSegment {
			return segment{}, fmt.Errorf("segment %s: its documents take more than %d bytes", name, mostSegment)
		}
		s.documents = append(s.documents, d)
	}
}

// root names the segments of every set. It is the whole state in one small value:
// 65,536 services are about 400 kB of names.
type root struct {
	Format   int                 `json:"format"`
	Revision uint64              `json:"revision"`
	Sets     map[string][]string `json:"sets"` // names of segments, by owner
}

// names returns the names of all segments of a root.
func (r root) names() map[string]bool {
	names := map[string]bool{}
	for _, list := range r.Sets {
		for _, name := range list {
			names[name] = true
		}
	}
	return names
}

// check refuses what no director writes: each service has one document, so each segment is in one
// place, and a repeated name would repeat its segment.
func (r root) check() error {
	seen := map[string]bool{}
	for owner, names := range r.Sets {
		for _, name := range names {
			if seen[name] {
				return fmt.Errorf("segment %s, of owner %q, is there twice", name, owner)
			}
			seen[name] = true
		}
	}
	return nil
}

// state joins the documents of the root's segments.
func (r root) state(segments map[string]segment) (State, error) {
	s := State{Revision: r.Revision, Sets: map[string]Set{}}
	for owner, names := range r.Sets {
		set := Set{Documents: []Document{}}
		for _, name := range names {
			segment, has := segments[name]
			if !has {
				return State{}, fmt.Errorf("segment %s of owner %q is missing", name, owner)
			}
			set.Documents = append(set.Documents, segment.documents...)
		}
		s.Sets[owner] = set
	}
	return s, nil
}

// readRoot reads a root; no text is the empty state.
func readRoot(text []byte) (root, error) {
	r := root{Format: Format, Sets: map[string][]string{}}
	if text == nil {
		return r, nil
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return root{}, fmt.Errorf("read the root: %w", err)
	}
	if err := r.check(); err != nil {
		return root{}, fmt.Errorf("read the root: %w", err)
	}
	if r.Format != Format {
		return root{}, fmt.Errorf("read the root: format %d was written by another version of weir; this one reads %d", r.Format, Format)
	}
	return r, nil
}

// follow returns the root after a change of these owners' sets, and the segments that the earlier
// root does not have.
func (r root) follow(next State, owners []string) (root, []segment, error) {
	to := root{Format: Format, Revision: r.Revision + 1, Sets: map[string][]string{}}
	for owner, names := range r.Sets {
		to.Sets[owner] = names
	}
	have := r.names()
	var fresh []segment
	for _, owner := range owners {
		set, has := next.Sets[owner]
		if !has {
			return root{}, nil, fmt.Errorf("owner %q: a set can be empty, not gone", owner)
		}
		segments, err := cut(set)
		if err != nil {
			return root{}, nil, err
		}
		to.Sets[owner] = make([]string, len(segments))
		for i, s := range segments {
			to.Sets[owner][i] = s.name
			if !have[s.name] {
				fresh = append(fresh, s)
			}
		}
	}
	return to, fresh, nil
}
