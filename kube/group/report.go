package group

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"weir.io/weir/internal/model"
)

// A director's Lease says more than the Presence in other annotations. The controller looks at once at
// what the first one says, and later at the second one, which always changes.
const (
	AnnotationReport = "weir.io/report" // a Report
	AnnotationCounts = "weir.io/counts" // a Counts
	AnnotationOthers = "weir.io/others" // an Others; it is looked at with the report
)

// MostReport bounds each of these annotations: an object may have 256 KiB of them.
const MostReport = 64 << 10

// Report is what a director has found about the members of LoadBalancers, and what is wrong with
// itself.
type Report struct {
	Problems []Problem                `json:"problems,omitempty"`
	Services map[string]ServiceReport `json:"services,omitempty"` // by the services' names
	// Missing is how many services have no room in the report: nothing is known of these.
	Missing int `json:"missing,omitempty"`
}

// Problem is something that a director was asked for and that does not run there.
type Problem struct {
	Text    string        `json:"text"`
	Segment model.Segment `json:"segment,omitzero"` // the tenant's network that it is about
}

// MostProblems is how many problems a report has.
const MostProblems = 16

// ServiceReport is what a director has found about the members of one service. Members that are not
// named are up.
type ServiceReport struct {
	Down    map[string]string `json:"down,omitempty"`    // why, by the members' names
	Unknown []string          `json:"unknown,omitempty"` // none of whose probes has ended yet
	Checked bool              `json:"checked,omitempty"` // they are probed; else only the way to them is known
}

// Counts is what a director has counted, and what it has to do.
type Counts struct {
	Services map[string]Count `json:"services,omitempty"` // by the services' names
	Load     Load             `json:"load"`
}

// Count has the packets, bytes, opened connections and dropped packets of a service since its
// director began to forward it.
type Count [4]uint64

// Others are the services of a director that are not of the group, and may be in the way of the
// group's, or taken over.
type Others struct {
	Services []Other `json:"services,omitempty"`
	// Missing is how many of them have no room.
	Missing int `json:"missing,omitempty"`
}

// Other is a service of another owner, with its log.
type Other struct {
	Owner    string         `json:"owner"`
	Fixed    bool           `json:"fixed,omitempty"` // of the director's own file
	Document model.Document `json:"document"`
}

// String writes the others as their annotation has them; empty: there are none.
func (o Others) String() string {
	if len(o.Services) == 0 {
		return ""
	}
	for kept := len(o.Services); ; kept /= 2 {
		part := Others{Services: o.Services[:kept], Missing: len(o.Services) - kept}
		if text := packed(part); len(text) <= MostReport {
			return text
		}
	}
}

// ReadOthers reads what Others.String has written. Logs that are none are not taken.
func ReadOthers(text string) (o Others, err error) {
	if err := unpack(AnnotationOthers, text, &o); err != nil {
		return Others{}, err
	}
	for i := range o.Services {
		if err := o.Services[i].Document.Log.Validate(); err != nil {
			return Others{}, fmt.Errorf("annotation %s: %w", AnnotationOthers, err)
		}
	}
	return o, nil
}

// Load is how much of what a director can do is taken.
type Load struct {
	Utilization float64 `json:"utilization"` // the CPUs' share of their capacity for packets, their mean, 0 to 1
	Used        float64 `json:"used"`        // the greatest share of a limit that is used, 0 to 1
}

// String writes the report as its annotation has it; empty: there is nothing to say. What has no
// room is left out, and counted.
func (r Report) String() string {
	if len(r.Services) == 0 && len(r.Problems) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(r.Services))
	for kept := len(names); ; kept /= 2 {
		part := Report{Problems: r.Problems[:min(len(r.Problems), MostProblems)], Services: map[string]ServiceReport{}, Missing: len(names) - kept}
		for _, name := range names[:kept] {
			part.Services[name] = r.Services[name]
		}
		if text := packed(part); len(text) <= MostReport {
			return text
		}
	}
}

// String writes the counts as their annotation has them. Services that have no room are left out.
func (c Counts) String() string {
	names := slices.Sorted(maps.Keys(c.Services))
	for kept := len(names); ; kept /= 2 {
		part := Counts{Services: map[string]Count{}, Load: c.Load}
		for _, name := range names[:kept] {
			part.Services[name] = c.Services[name]
		}
		if text := packed(part); len(text) <= MostReport {
			return text
		}
	}
}

// packed writes a value as compressed JSON in base64.
func packed(value any) string {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestSpeed) // the level is good, and a buffer takes everything
	if err := json.NewEncoder(w).Encode(value); err != nil {
		panic(err) // it has only texts and finite numbers
	}
	_ = w.Close()
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// ReadReport reads what Report.String has written. A client that may write Leases may write anything
// into them.
func ReadReport(text string) (r Report, err error) {
	return r, unpack(AnnotationReport, text, &r)
}

// ReadCounts reads what Counts.String has written.
func ReadCounts(text string) (c Counts, err error) {
	if err := unpack(AnnotationCounts, text, &c); err != nil {
		return Counts{}, err
	}
	for _, share := range []*float64{&c.Load.Utilization, &c.Load.Used} {
		*share = min(max(*share, 0), 1)
	}
	return c, nil
}

// mostUnpacked bounds the text of an annotation when it is read.
const mostUnpacked = 8 << 20

func unpack(name, text string, into any) error {
	if text == "" {
		return nil
	}
	if len(text) > MostReport {
		return fmt.Errorf("annotation %s: has more than %d bytes", name, MostReport)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		if raw, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), mostUnpacked)); err == nil {
			err = json.Unmarshal(raw, into)
		}
	}
	if err != nil {
		return fmt.Errorf("annotation %s: %w", name, err)
	}
	return nil
}
