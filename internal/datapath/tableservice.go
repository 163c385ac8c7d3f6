package datapath

import "weir.io/weir/internal/model"

// Service returns the service of that name as the kernel was last set to it; false: there is none.
// It must only be read.
func (d *Datapath) Service(name string) (model.TableService, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.table.Services {
		if d.table.Services[i].Name == name {
			return d.table.Services[i], true
		}
	}
	return model.TableService{}, false
}
