package sets

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"weir.io/weir/internal/model"
)

// given is what has been read of sets that come with their logs. A set comes as a whole again when
// one of its services has changed: a document whose text is unchanged is the one that was read
// before, in the same memory, so later code knows that it has nothing to do for it.
type given struct {
	mu   sync.Mutex
	of   map[string]map[digest]model.Document // by owner and text
	read int                                  // documents, for tests
}

type digest [sha256.Size]byte

// givenSet is a set that was read.
type givenSet struct {
	documents []model.Document // nil: the text has none
	texts     []digest
	known     []bool // to be valid
	size      int    // bytes that the documents take
}

// mostGiven bounds what the documents of a set take, in bytes: as much as all sets together that
// wait to be applied.
const mostGiven = 512 << 20

// parse reads a set in the JSON that api.DocumentsText writes.
func (g *given) parse(owner string, text []byte) (set givenSet, err error) {
	var all struct {
		Documents []json.RawMessage `json:"documents"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		return set, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return set, errors.New("something follows the end")
	}
	if all.Documents == nil {
		return set, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	set.documents = make([]model.Document, len(all.Documents))
	set.known = make([]bool, len(all.Documents))
	set.texts = make([]digest, len(all.Documents))
	for i, one := range all.Documents {
		set.texts[i] = sha256.Sum256(one)
		if set.documents[i], set.known[i] = g.of[owner][set.texts[i]]; set.known[i] {
			continue
		}
		g.read++
		if err := json.Unmarshal(one, &set.documents[i]); err != nil {
			return set, err
		}
		if set.size += set.documents[i].Size(); set.size > mostGiven {
			return set, fmt.Errorf("its documents take more than %d bytes", mostGiven)
		}
	}
	return set, nil
}

// keep remembers a set that was taken, and forgets its owner's earlier ones.
func (g *given) keep(owner string, set givenSet) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[string]map[digest]model.Document{}
	}
	of := make(map[digest]model.Document, len(set.documents))
	for i, text := range set.texts {
		of[text] = set.documents[i]
	}
	g.of[owner] = of
	if len(of) == 0 {
		delete(g.of, owner)
	}
}
