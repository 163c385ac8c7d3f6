package desired

import (
	"testing"

	"weir.io/weir/lab/etcdlab"
)

func TestMain(m *testing.M) { etcdlab.Isolated(m) }
