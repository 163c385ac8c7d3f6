package desired

import (
	"testing"

	"weir.io/weir/internal/etcdlab"
)

func TestMain(m *testing.M) { etcdlab.Isolated(m) }
