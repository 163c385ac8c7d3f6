package doctor

import (
	"os"

	"weir.io/weir/internal/model"
	"weir.io/weir/internal/privilege"
)

// programs checks that the programs of health checks can be run.
func (x *examination) programs() {
	const check = "health checks"
	seen := map[string]bool{}
	for i := range x.config.Services {
		s := &x.config.Services[i]
		if !s.Checked() || s.Health.Kind != model.CheckExec || seen[s.Health.Exec[0]] {
			continue
		}
		path := s.Health.Exec[0]
		seen[path] = true
		const fix = "install it, or change health.exec of the service"
		switch info, err := os.Stat(path); {
		case err != nil:
			x.known(check, fix, "service %s: its program cannot be run: %v", s.Name, err)
		case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
			x.known(check, "chmod a+rx "+path, "service %s: %s is not executable", s.Name, path)
		}
	}
	if len(seen) == 0 {
		return
	}
	name := x.config.Director.ExecChecks.Account()
	if _, err := privilege.Account(name); err != nil {
		x.known(check, "change director.exec-checks.user, or give the process what it lacks", "their programs cannot be run: %v", err)
	}
}
