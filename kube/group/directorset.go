package group

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/v1alpha1"
)

// A compressed text may grow to these bounds when it is read. Only the controller writes such
// texts, and a damaged one must not take all memory. Documents of many equal backends shrink to a
// 30th.
const (
	mostText    = 256 << 20
	textPerByte = 200
	textAtLeast = 1 << 20
)

// Encode writes a Service with its documents, and what a reader wants to know about them.
func Encode(name string, set int, revision int64, documents []model.Document) (v1alpha1.CompiledService, error) {
	c := v1alpha1.CompiledService{Name: name, Set: int32(set), Revision: revision}
	seen := map[string]bool{}
	for i := range documents {
		d := &documents[i]
		if vip := (VIP{d.Service.Segment, d.Service.VIP}).String(); !seen[vip] {
			seen[vip] = true
			c.VIPs = append(c.VIPs, vip)
		}
		c.Backends += int32(len(d.Service.Backends))
		c.Generations += int32(len(d.Log.Generations))
		if len(d.Log.Generations) > 0 {
			c.Generation = max(c.Generation, int64(d.Log.Generations[0].Number))
		}
	}
	text, err := json.Marshal(documents)
	if err != nil {
		return c, fmt.Errorf("write the documents of %s: %w", name, err)
	}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return c, fmt.Errorf("compress the documents of %s: %w", name, err)
	}
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	if err != nil {
		return c, fmt.Errorf("compress the documents of %s: %w", name, err)
	}
	c.Documents = b.Bytes()
	return c, nil
}

// Decode returns what Encode wrote. It returns ErrNewer for what a later version has written;
// anything else that cannot be forwarded was not written by Encode.
func Decode(c *v1alpha1.CompiledService) ([]model.Document, error) {
	most := min(mostText, textAtLeast+textPerByte*len(c.Documents))
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(c.Documents)), int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("decompress the documents of %s: %w", c.Name, err)
	}
	if len(text) > most {
		return nil, fmt.Errorf("decompress the documents of %s: %d bytes become more than %d", c.Name, len(c.Documents), most)
	}
	documents, err := readDocuments(text)
	if err != nil {
		return nil, fmt.Errorf("read the documents of %s: %w", c.Name, err)
	}
	for i := range documents {
		d := &documents[i]
		if err := d.Log.Validate(); err != nil {
			return nil, fmt.Errorf("read the documents of %s: documents[%d]: %w", c.Name, i, err)
		}
		if !d.Service.VIP.IsValid() {
			return nil, fmt.Errorf("read the documents of %s: documents[%d]: service %q has no vip", c.Name, i, d.Service.Name)
		}
	}
	return documents, nil
}

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

// The API server takes objects of up to 1.5 MB, and each change of a Service writes one of them
// anew. So a group's Services are spread over several: an object gets new Services while it is
// smaller than Roomy, which keeps writes small. The Services that it has may grow until it reaches
// Full; beyond that, a Service that grows moves to another object.
const (
	Roomy = 64 << 10
	Full  = 768 << 10
)

// overhead is about how many bytes of a CompiledService are not its documents.
const overhead = 256

// SizeOf returns about how many bytes of a DirectorSet a Service takes.
func SizeOf(c *v1alpha1.CompiledService) int {
	return overhead + len(c.Name) + (len(c.Documents)+2)/3*4
}

// Place returns the DirectorSet that a Service of a size is written in, by the sizes of the
// existing ones: the first that is roomy, so that a small cluster has one, or else a new one. A
// Service larger than Full has one for itself.
func Place(size int, sizes map[int]int) int {
	for set := 0; ; set++ {
		if has := sizes[set]; has == 0 || has < Roomy && has+size <= Full {
			return set
		}
	}
}

// ObjectName returns the name of a group's DirectorSet.
func ObjectName(group string, set int) string { return fmt.Sprintf("%s-%d", group, set) }

// IsNamed reports whether a DirectorSet has the name that follows from its spec: any other is not
// the controller's.
func IsNamed(o *v1alpha1.DirectorSet) bool {
	return o.Name == ObjectName(o.Spec.Group, int(o.Spec.Set))
}

// Owner returns the name of the owner, in directors, of a set's Services.
func Owner(prefix, group string, set int) string { return fmt.Sprintf("%s.%s.%d", prefix, group, set) }
