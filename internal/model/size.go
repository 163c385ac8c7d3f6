package model

import "unsafe"

// SizeOf returns about how many bytes services take with their lists, without what aliases of a
// text or other services may share, such as names.
func SizeOf(services []Service) (bytes int) {
	bytes = len(services) * int(unsafe.Sizeof(Service{}))
	for i := range services {
		s := &services[i]
		bytes += len(s.Backends)*int(unsafe.Sizeof(Backend{})) + len(s.SourceRanges)*int(unsafe.Sizeof(s.SourceRanges[0]))
	}
	return bytes
}

// Size returns about how many bytes the report takes.
func (r *AgentReport) Size() int {
	size := int(unsafe.Sizeof(*r)) + len(r.Services)*int(unsafe.Sizeof(ReportedService{})) + len(r.Signals)*int(unsafe.Sizeof(Signal{}))
	for i := range r.Services {
		if used := r.Services[i].Used; used != nil {
			size += used.Size() / 8
		}
	}
	return size
}

// Size returns about how many bytes the document takes.
func (d *Document) Size() int {
	size := SizeOf([]Service{d.Service}) + len(d.Log.Generations)*int(unsafe.Sizeof(Generation{})) +
		len(d.Log.Steps)*int(unsafe.Sizeof(Step{})) + len(d.Log.Strained)*int(unsafe.Sizeof(Strain{}))
	for i := range d.Log.Generations {
		g := &d.Log.Generations[i]
		size += len(g.Members)*int(unsafe.Sizeof(Member{})) + len(g.Gone)*int(unsafe.Sizeof(g.Gone[0]))
		if g.Kept != nil {
			size += g.Kept.Size() / 8
		}
	}
	return size
}
