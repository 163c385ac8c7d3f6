package desired

import (
	"errors"
	"strings"
	"testing"

	"weir.io/weir/internal/model"
)

// An owner whose set is beyond its limit is refused by its name, the limit's and the count, and
// others are not; and what runs goes on when the limit is made a smaller one.
func TestOwnersHaveLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		file := config(web("a", 2))
		file.Director.Owners = []model.OwnerLimits{{Owner: "kube.edge.1", Services: 3, Backends: 6}}
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
