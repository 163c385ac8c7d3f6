package group

import (
	"bytes"
	"compress/flate"
	"encoding/json"
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
		if vip := d.Service.VIP.String(); !seen[vip] {
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
