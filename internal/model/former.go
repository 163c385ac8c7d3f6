package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// FormerServiceKeys are keys of a service by the names that versions before v0.1.0 had for them, and
// their names today. Files and sets may still have them.
var FormerServiceKeys = map[string]string{"drain": "retention", "max-drain": "max-retention"}

// FormerKey is a field that a file has by a former name.
type FormerKey struct {
	Line  int
	Field string // with the former name
	Now   string // today's name
}

// String says which name to write.
func (k FormerKey) String() string {
	return fmt.Sprintf("%s is called %s now; the former name is still read", k.Field, k.Now)
}

// StoredService is a service as stores have it, and as weir's own programs send it: with the former
// keys, because directors of older versions read the same stores, and know no others.
type StoredService Service

// storedService has the fields of Service in their order, with the former keys.
var storedService = func() reflect.Type {
	former := map[string]string{}
	for before, now := range FormerServiceKeys {
		former[now] = before
	}
	fields := reflect.VisibleFields(reflect.TypeFor[Service]())
	for i := range fields {
		name, options, _ := strings.Cut(fields[i].Tag.Get("json"), ",")
		if before, is := former[name]; is {
			fields[i].Tag = reflect.StructTag(`json:"` + before + "," + options + `"`)
		}
	}
	return reflect.StructOf(fields)
}()

// MarshalJSON writes the service with the former keys.
func (s StoredService) MarshalJSON() ([]byte, error) {
	return json.Marshal(reflect.ValueOf(s).Convert(storedService).Interface())
}

// UnmarshalJSON reads a service with the former keys, or with today's, and with no unknown ones.
func (s *StoredService) UnmarshalJSON(text []byte) error {
	read := reflect.New(storedService)
	for _, now := range FormerServiceKeys {
		if bytes.Contains(text, []byte(`"`+now+`"`)) {
			read = reflect.New(reflect.TypeFor[Service]())
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(read.Interface()); err != nil {
		return err
	}
	*s = read.Elem().Convert(reflect.TypeFor[StoredService]()).Interface().(StoredService)
	return nil
}
