package desired

import (
	"errors"
	"sync"

	"weir.io/weir/internal/model"
)

// recorder is a list of problems of which only what is listed now is known.
type recorder struct {
	mu    sync.Mutex
	parts map[[2]string]error
}

func (r *recorder) Report(kind model.ProblemKind, part string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parts == nil {
		r.parts = map[[2]string]error{}
	}
	if r.parts[[2]string{string(kind), part}] = err; err == nil {
		delete(r.parts, [2]string{string(kind), part})
	}
}

func (r *recorder) Warn(kind model.ProblemKind, part string, err error) { r.Report(kind, part, err) }

// All returns them, as problems.List does.
func (r *recorder) All() (all []model.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, err := range r.parts {
		p := model.Problem{Kind: model.ProblemKind(at[0]), Part: at[1], Text: err.Error()}
		if placed := (interface{ Place() model.Place })(nil); errors.As(err, &placed) {
			p.Place = placed.Place()
		}
		if fixed := (interface{ Fix() string })(nil); errors.As(err, &fixed) {
			p.Fix = fixed.Fix()
		}
		all = append(all, p)
	}
	return all
}
