package group

import (
	"bytes"
	"compress/flate"
	"strings"
	"testing"

	"weir.io/weir/kube/v1alpha1"
	"weir.io/weir/lab/memlab"
)

// squeezed is a text as Encode compresses it.
func squeezed(text string) []byte {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err)
	}
	return b.Bytes()
}

// decodeBound is what may be allocated to decompress and read, for each compressed byte: a text
// that becomes 200 times as long, with one object in 16 bytes.
var decodeBound = memlab.Bound{PerByte: 200 * 200, AtLeast: 100 << 20}

// hostileSets are texts that take more memory than their length warrants.
func hostileSets() map[string]string {
	kept := strings.TrimSuffix(strings.Repeat(`{"kept":"1048576 gaps "},`, 10000), ",")
	return map[string]string{
		"blanks":     "[" + strings.Repeat(" ", 20<<20) + "]",
		"large sets": `[{"service":{},"log":{"generations":[` + kept + `]}}]`,
		"unknown":    `[{"service":{},"log":{"generations":[` + kept + `]},"later":1}]`,
		"nothing":    `[{"service":{"backends":[` + strings.Repeat("{},", 1<<20) + `{}]},"log":{}}]`,
	}
}

func TestHostileDocuments(t *testing.T) {
	for name, text := range hostileSets() {
		c := v1alpha1.CompiledService{Name: name, Documents: squeezed(text)}
		decodeBound.Check(t, len(c.Documents), func() {
			if documents, err := Decode(&c); err == nil {
				t.Errorf("%s are read as %d documents", name, len(documents))
			}
		})
	}
}

// FuzzDecodeMemory: whatever is in a compiled Service, the memory to read it is bounded by its
// length.
func FuzzDecodeMemory(f *testing.F) {
	for _, text := range hostileSets() {
		f.Add(squeezed(text[:min(len(text), 2000)]))
	}
	f.Add(squeezed(`[{"service":{"name":"a","vip":"192.0.2.1"},"log":{"generations":[{"kept":"5 bits Hw"}]}}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		decodeBound.Check(t, len(text), func() { _, _ = Decode(&v1alpha1.CompiledService{Documents: text}) })
	})
}
