package desired

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// An owner whose set is beyond its limit is refused by its name, the limit's and the count, and
// others are not; and what runs goes on when the limit is made a smaller one.
func TestOwnersHaveLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		file := config(web("a", 2))
		file.Director.Owners = []model.OwnerLimits{{Owner: "kube.edge.1", ShareLimits: model.ShareLimits{Services: 3, Backends: 6}}}
		if err := d.SetFile(file); err != nil {
			t.Fatal(err)
		}
		refuses := func(owner string, set, services, backends int, want string) {
			t.Helper()
			_, err := d.Give(t.Context(), owner, setOf(set, services, backends))
			refused := (*RefusedError)(nil)
			if want == "" && err == nil {
				return
			}
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || want == "" {
				t.Errorf("%d services of %d backends of %s: %v, want %q", services, backends, owner, err, want)
			}
		}
		refuses("kube.edge.1", 1, 4, 1, `owner "kube.edge.1" may have 3 services by director.owners, and this set has 4`)
		refuses("kube.edge.1", 1, 3, 3, `owner "kube.edge.1" may have 6 backends by director.owners, and this set has 9`)
		refuses("kube.edge.1", 1, 3, 2, "")
		refuses("kube.edge.2", 2, 20, 1, "")
		file.Director.Owners[0].Services = 1
		if err := d.SetFile(file); err != nil {
			t.Errorf("a smaller limit than what runs: %v", err)
		}
		if got := len(d.Sets().Sets["kube.edge.1"].Documents); got != 3 {
			t.Errorf("what ran has %d services, want 3", got)
		}
		// Beyond the limits of the director the most is named first.
		file.Director.Limits.Services = 24
		if err := d.SetFile(file); err != nil {
			t.Fatal(err)
		}
		refuses("kube.edge.3", 3, 5, 1, `29 services are more than director.limits.services, 24: owner "kube.edge.2" has 20, owner "kube.edge.3" has 5, owner "kube.edge.1" has 3, owner "file" has 1`)
	})
}

// inSegment moves a set's services into a segment.
func inSegment(id model.Segment, documents []model.Document) []model.Document {
	for i := range documents {
		documents[i].Service.Segment, documents[i].Service.Mode = id, model.L2DSR
	}
	return documents
}

// servicesOf are the services of documents.
func servicesOf(documents []model.Document) (services []model.Service) {
	for i := range documents {
		services = append(services, documents[i].Service)
	}
	return services
}

// A segment's limit counts what is in it of all owners, and of the file. What does not add to it is taken also
// where it is exceeded, and what runs goes on.
func TestSegmentsHaveLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		red, blue := model.Segment{Kind: model.SegmentVXLAN, ID: 5001}, model.Segment{Kind: model.SegmentVXLAN, ID: 5002}
		file := config(web("a", 2))
		file.Director.VTEP.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		file.Director.VTEP.VXLANPort, file.Director.VTEP.GenevePort = model.DefaultVXLANPort, model.DefaultGenevePort
		file.Services[0].Segment, file.Services[0].Mode = red, model.L2DSR
		file.Director.SegmentLimits.Services, file.Director.SegmentLimits.ProbesPerSecond = 3, 3
		file.Segments = []model.SegmentSettings{{ID: red, Limits: &model.SegmentLimits{ShareLimits: model.ShareLimits{Services: 4, Backends: 7}}}}
		if err := d.SetFile(file); err != nil {
			t.Fatal(err)
		}
		put := func(owner string, documents []model.Document, want string) {
			t.Helper()
			services := servicesOf(documents)
			_, planned := d.Plan(t.Context(), owner, services, 1)
			_, err := d.Put(t.Context(), owner, services, model.SetCondition{})
			for _, err := range []error{planned, err} {
				refused := (*RefusedError)(nil)
				if want != "" && (!errors.As(err, &refused) || !strings.Contains(err.Error(), want)) || want == "" && err != nil {
					t.Errorf("%d services of %s: %v, want %q", len(documents), owner, err, want)
				}
			}
		}
		put("one", inSegment(red, setOf(1, 2, 1)), "")
		put("two", inSegment(red, setOf(2, 2, 1)), "services: segment vxlan:5001 may have 4 services by segments[0].limits, and has 5 with this")
		put("two", inSegment(red, setOf(2, 1, 4)), "services: segment vxlan:5001 may have 7 backends by segments[0].limits, and has 8 with this")
		put("two", inSegment(red, setOf(2, 1, 3)), "")
		put("three", inSegment(blue, setOf(3, 4, 1)), "services: segment vxlan:5002 may have 3 services by director.segment-limits, and has 4 with this")
		put("three", inSegment(blue, setOf(3, 3, 1)), "")
		for checked, want := range map[string]string{"1s": "", "500ms": "services: segment vxlan:5002 may have 3 probes-per-second by director.segment-limits, and has 6 with this"} {
			documents := inSegment(blue, setOf(3, 3, 1))
			for i := range documents {
				how := &model.HealthCheck{Kind: model.CheckTCP}
				if err := how.Interval.UnmarshalText([]byte(checked)); err != nil {
					t.Fatal(err)
				}
				c := model.Config{Services: []model.Service{{Health: how}}}
				c.SetDefaults()
				documents[i].Service.Health = c.Services[0].Health
			}
			put("three", documents, want)
		}
		put("four", setOf(4, 20, 1), "") // none is no tenant's

		elsewhere := inSegment(blue, setOf(3, 1, 1)) // a backend counts where it is
		elsewhere[0].Service.Backends[0].Segment = &red
		put("three", elsewhere, "segment vxlan:5001 may have 7 backends by segments[0].limits, and has 8 with this")

		if _, err := d.Give(t.Context(), "five", inSegment(blue, setOf(5, 1, 1))); err == nil || !strings.Contains(err.Error(), "segment vxlan:5002 may have 3 services") {
			t.Errorf("a set with its logs: %v", err)
		}

		file.Segments = []model.SegmentSettings{{ID: red, Limits: &model.SegmentLimits{ShareLimits: model.ShareLimits{Services: 1}}}}
		if err := d.SetFile(file); err != nil {
			t.Errorf("a smaller limit than what runs: %v", err)
		}
		put("one", inSegment(red, setOf(1, 1, 1)), "") // less than before, and still too much
		put("one", inSegment(red, setOf(1, 2, 1)), "segment vxlan:5001 may have 1 service by segments[0].limits, and has 4 with this")
		put("four", setOf(4, 21, 1), "") // it is not in it
		file.Services = append(slices.Clone(file.Services), file.Services[0])
		file.Services[1].Name, file.Services[1].VIP = "b", netip.MustParseAddr("192.0.2.2")
		if err := file.Validate(); err == nil || !strings.Contains(err.Error(), "segments[0].limits.services: segment vxlan:5001 may have 1 service, and has 2") {
			t.Errorf("a file with two services: %v", err)
		}
	})
}
