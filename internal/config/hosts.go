package config

import (
	"bytes"
	"encoding/json"

	"weir.io/weir/internal/model"
)

// hostsText is how a list of hosts of tenants' networks is written.
type hostsText struct {
	Segments []model.SegmentHosts `json:"segments"`
}

// ParseHosts reads where hosts of tenants' networks are, for a director with this configuration, as strictly as Parse. The text
// may come from a client of the API: the cost of reading it is bounded.
func ParseHosts(name string, text []byte, c *model.Config) ([]model.SegmentHosts, error) {
	if list, is := writtenHosts(text); is {
		wrong := model.ValidateHosts(list, c)
		if len(wrong) == 0 {
			return list, nil
		}
		if looseSet(text) != "" || count(list) > model.MaxSegmentHosts {
			return nil, named(name, (&document{}).invalid(wrong)) // without the lines
		}
	}
	doc, errs := newDocument(text, true)
	if len(errs) > 0 {
		return nil, named(name, errs)
	}
	var hosts hostsText
	dec := doc.decode(&hosts)
	errs = dec.errs
	// A text without the key is more likely the wrong one than an empty list.
	if _, given := doc.line("segments"); !given && len(errs) == 0 {
		errs = Errors{{Path: "segments", Problem: "is required (an empty list is [])"}}
	}
	if wrong := model.ValidateHosts(hosts.Segments, c); len(wrong) > 0 && !dec.full {
		errs = append(errs, dec.lost.without(doc.invalid(wrong))...)
	}
	if len(errs) > 0 {
		return nil, named(name, errs)
	}
	return hosts.Segments, nil
}

func count(list []model.SegmentHosts) (hosts int) {
	for i := range list {
		hosts += len(list[i].Hosts)
	}
	return hosts
}

// writtenHosts reads a list in the form that encoding/json writes, which takes only the memory of the hosts: see written.
func writtenHosts(text []byte) (list []model.SegmentHosts, is bool) {
	var hosts hostsText
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&hosts) != nil {
		return nil, false
	}
	again, err := json.Marshal(hosts)
	return hosts.Segments, err == nil && bytes.Equal(again, bytes.TrimSpace(text)) && !bytes.Contains(text, []byte(":null"))
}
