package datapath

import "weir.io/weir/internal/model"

// Service returns a service as the kernel was set to it last, by its name; false: there is
// none. It is to be read only.
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
