package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Format is the version of what is written, to files and to etcd. A change that an older weir would
// misread gets another number, which it refuses.
const Format = 1

// written is an owner's set as a file has it.
type written struct {
	Format    int
	Owner     string
	Revision  uint64
	Given     bool // only written if true
	Documents []Document
}

// encode writes the set as JSON, one document to a line.
func (w written) encode() ([]byte, error) {
	var b bytes.Buffer
	owner, err := json.Marshal(w.Owner) // Go's own quoting is not JSON's
	if err != nil {
		return nil, fmt.Errorf("encode owner %q: %w", w.Owner, err)
	}
	fmt.Fprintf(&b, "{\"format\":%d,\"owner\":%s,\"revision\":%d,", w.Format, owner, w.Revision)
	if w.Given {
		b.WriteString("\"given\":true,")
	}
	b.WriteString("\"documents\":[")
	for i, d := range w.Documents {
		line, err := json.Marshal(d)
		if err != nil {
			return nil, fmt.Errorf("encode service %q: %w", d.Service.Name, err)
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
}

// badText is what is wrong with a text, and where.
type badText struct {
	offset  int64
	problem error
}

func (e *badText) Error() string { return e.problem.Error() }
func (e *badText) Unwrap() error { return e.problem }

// position returns the line and column, from 1, of the error in the text.
func (e *badText) position(text []byte) (line, column int) {
	before := text[:max(0, min(int(e.offset), len(text)))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// reader decodes a text and says where it is wrong.
type reader struct {
	*json.Decoder
	text []byte
}

func newReader(text []byte) *reader {
	r := &reader{json.NewDecoder(bytes.NewReader(text)), text}
	r.DisallowUnknownFields()
	return r
}

// value decodes the next value. An error inside it that is not bad JSON is reported at its
// beginning: the decoder says no more.
func (r *reader) value(v any) error {
	at := r.skipSpace(r.InputOffset())
	err := r.Decode(v)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		// Between tokens a decoder loses count; one that begins at the value does not.
		var again *json.SyntaxError
		if errors.As(json.NewDecoder(bytes.NewReader(r.text[at:])).Decode(new(json.RawMessage)), &again) {
			return &badText{at + again.Offset - 1, err}
		}
	}
	return r.at(at, err)
}

// skipSpace skips what stands between two values.
func (r *reader) skipSpace(offset int64) int64 {
	for int(offset) < len(r.text) && bytes.IndexByte([]byte(", \t\r\n:"), r.text[offset]) >= 0 {
		offset++
	}
	return offset
}

// next reports whether the next key has this name.
func (r *reader) next(key string) bool {
	return bytes.HasPrefix(r.text[min(r.skipSpace(r.InputOffset()), int64(len(r.text))):], []byte(`"`+key+`"`))
}

func (r *reader) at(offset int64, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &badText{int64(len(r.text)), errors.New("the file ends too early")}
	}
	return &badText{r.skipSpace(offset), err}
}

// delimiter reads one of { } [ ].
func (r *reader) delimiter(want json.Delim) error {
	at := r.InputOffset()
	token, err := r.Token()
	if err == nil && token != want {
		err = fmt.Errorf("there is %v, not %v", token, want)
	}
	return r.at(at, err)
}

// decode reads what encode wrote, and nothing else. An error is a *badText.
func decode(text []byte) (w written, err error) {
	r := newReader(text)
	if err := r.delimiter('{'); err != nil {
		return w, err
	}
	fields := map[string]func() error{
		"format":    func() error { return r.version(&w.Format) },
		"owner":     func() error { return r.value(&w.Owner) },
		"revision":  func() error { return r.value(&w.Revision) },
		"given":     func() error { return r.value(&w.Given) },
		"documents": func() error { return r.documents(&w.Documents) },
	}
	for _, name := range []string{"format", "owner", "revision", "given", "documents"} {
		if name == "given" && !r.next("given") {
			continue
		}
		at := r.InputOffset()
		token, err := r.Token()
		if err == nil && token != name {
			err = fmt.Errorf("there is %v, not the key %q", token, name)
		}
		if err := r.at(at, err); err != nil {
			return w, err
		}
		if err := fields[name](); err != nil {
			return w, err
		}
	}
	if err := r.delimiter('}'); err != nil {
		return w, err
	}
	at := r.InputOffset()
	if _, err := r.Token(); err != io.EOF {
		return w, r.at(at, errors.New("something follows the end"))
	}
	return w, nil
}

// version reads the format first: the meaning of another format is not known.
func (r *reader) version(v *int) error {
	at := r.InputOffset()
	if err := r.value(v); err != nil {
		return err
	}
	if *v != Format {
		return r.at(at, &formatError{*v})
	}
	return nil
}

func (r *reader) documents(list *[]Document) error {
	if err := r.delimiter('['); err != nil {
		return err
	}
	*list = []Document{}
	for r.More() {
		var d Document
		if err := r.value(&d); err != nil {
			return err
		}
		*list = append(*list, d)
	}
	return r.delimiter(']')
}
