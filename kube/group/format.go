package group

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"weir.io/weir/internal/model"
)

// Format is the version of what Encode writes. A change gets another number if this version would
// misread it, or if a controller of this version would lose it by writing the Service again.
//
// The first format is an array of documents, written by versions that knew of no numbers. Later
// ones are an object whose key "format" has the number.
const Format = 1

// ErrNewer says that a later version of weir has written something that this one cannot read. It is
// not damaged, so nothing may overwrite it: connections depend on the histories in it.
var ErrNewer = errors.New("was written by a newer version of weir")

// readDocuments reads the text of a Service's documents. JSON that says more than this version
// knows is of a newer version, even where no number says so.
func readDocuments(text []byte) ([]model.Document, error) {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '{' {
		var later struct{ Format int }
		if err := json.Unmarshal(text, &later); err != nil {
			return nil, err
		}
		if later.Format <= Format {
			return nil, fmt.Errorf("no format is %d", later.Format)
		}
		return nil, fmt.Errorf("%w: format %d, and this one reads %d", ErrNewer, later.Format, Format)
	}
	if err := model.CheckObjects(text); err != nil {
		return nil, fmt.Errorf("the text %w", err)
	}
	documents, err := readBounded(text)
	if err != nil && saysMore(text, err) {
		return nil, fmt.Errorf("%w: %w", ErrNewer, err)
	}
	return documents, err
}

// mostDocuments bounds the memory of a Service's documents when they are read, in bytes: few bytes
// of text may stand for many.
const mostDocuments = 512 << 20

func readBounded(text []byte) ([]model.Document, error) {
	var texts []json.RawMessage
	if err := json.Unmarshal(text, &texts); err != nil || texts == nil {
		return nil, err
	}
	documents, size := make([]model.Document, len(texts)), 0
	for i := range texts {
		if err := json.Unmarshal(texts[i], &documents[i]); err != nil {
			return nil, err
		}
		if size += documents[i].Size(); size > mostDocuments {
			return nil, fmt.Errorf("they take more than %d bytes", mostDocuments)
		}
	}
	return documents, nil
}

// saysMore reports whether documents cannot be read only because they have fields or names that
// this version does not know.
func saysMore(text []byte, err error) bool {
	if unknown := (*model.UnknownName)(nil); errors.As(err, &unknown) {
		return true
	}
	var known []struct {
		Service *model.Service
		Log     *model.Log
	}
	if json.Unmarshal(text, &known) != nil {
		return false
	}
	for _, d := range known {
		if d.Service == nil || d.Log == nil || d.Log.Validate() != nil || !d.Service.VIP.IsValid() {
			return false
		}
	}
	return len(known) > 0
}
