package desired

import (
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"weir.io/weir/internal/model"
)

// A preview of a set equals its effect when it is put, and changes nothing.
func TestPreview(t *testing.T) {
	inBubble(t, func(t *testing.T, d *director, _ string) {
		d.set(t, web("file", 2))
		other := func(n int) []model.Service {
			s := web("set", n)
			s.Port = model.PortRange{First: 443, Last: 443}
			return config(s).Services
		}
		for n := 1; n <= 3; n++ { // the second and the third have a history
			before := len(d.sink.sets)
			joint, logs, err := d.Preview(t.Context(), "cli", other(n))
			if err != nil {
				t.Fatal(err)
			}
			would := d.engine.Preview(joint, logs)
			synctest.Wait()
			if len(d.sink.sets) != before {
				t.Fatal("looking at a set forwarded it")
			}
			if _, err := d.Put(t.Context(), "cli", other(n), model.SetCondition{}); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(d.sink.last, would) {
				t.Errorf("with %d backends: it became %+v, was to become %+v", n, d.sink.last, would)
			}
			pass(time.Second)
		}
		same := web("set", 1) // the file's VIP and port
		_, _, err := d.Preview(t.Context(), "cli", config(same).Services)
		if refused := (*RefusedError)(nil); !errors.As(err, &refused) {
			t.Errorf("a set with the file's service gives %v", err)
		}
	})
}
