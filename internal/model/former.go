package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// FormerServiceKeys are keys of a service by the names that earlier versions have for them, and their
// names today. Files and sets may have either.
var FormerServiceKeys = map[string]string{"drain": "retention", "max-drain": "max-retention"}

// FormerKey is a field that a file has by a former name.
type FormerKey struct {
	Line  int
	Field string // with the former name
	Now   string // today's name
}

// String says which name to write.
func (k FormerKey) String() string {
	return k.Field + " " + k.Problem()
}

// Problem says it without the field.
func (k FormerKey) Problem() string {
	return fmt.Sprintf("is called %s now; the former name is still read", k.Now)
}

// StoredService is a service as stores have it, and as weir's own programs send it: with the former
// keys, because directors of earlier versions read the same stores, and know no others.
type StoredService Service

// storedService has the fields of Service, in their order, by the former keys. readService has
// those, and after them the fields of these keys by their names today.
var storedService, readService = func() (stored, read reflect.Type) {
	former := map[string]string{}
	for before, now := range FormerServiceKeys {
		former[now] = before
	}
	fields := reflect.VisibleFields(reflect.TypeFor[Service]())
	var now []reflect.StructField
	for i := range fields {
		name, options, _ := strings.Cut(fields[i].Tag.Get("json"), ",")
		if before, is := former[name]; is {
			again := fields[i]
			again.Name += "Now"
			now = append(now, again)
			fields[i].Tag = reflect.StructTag(`json:"` + before + "," + options + `"`)
		}
	}
	return reflect.StructOf(fields), reflect.StructOf(append(fields[:len(fields):len(fields)], now...))
}()

// MarshalJSON writes the service with the former keys.
func (s StoredService) MarshalJSON() ([]byte, error) {
	return json.Marshal(reflect.ValueOf(s).Convert(storedService).Interface())
}

// UnmarshalJSON reads a service by the former keys, or by today's, and no unknown ones.
func (s *StoredService) UnmarshalJSON(text []byte) error {
	return (*Service)(s).read(text, true)
}

// UnmarshalJSON reads the same, but passes over unknown keys: those of later versions.
func (s *Service) UnmarshalJSON(text []byte) error { return s.read(text, false) }

func (s *Service) read(text []byte, strict bool) error {
	read := reflect.New(readService)
	if !strict {
		if err := json.Unmarshal(text, read.Interface()); err != nil {
			return err
		}
	} else {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(read.Interface()); err != nil {
			return err
		}
	}
	to := reflect.ValueOf(s).Elem()
	for i := range to.NumField() {
		to.Field(i).Set(read.Elem().Field(i))
	}
	for i := to.NumField(); i < read.Elem().NumField(); i++ {
		now, field := read.Elem().Field(i), readService.Field(i)
		if now.IsZero() {
			continue
		}
		before := to.FieldByName(strings.TrimSuffix(field.Name, "Now"))
		if !before.IsZero() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			return fmt.Errorf("%s is given by its former name, too", name)
		}
		before.Set(now)
	}
	return nil
}
