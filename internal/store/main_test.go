package store

import (
	"os"
	"testing"

	"weir.io/weir/lab/etcdlab"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(toBeKilled); dir != "" {
		toBeKilledNow(dir)
	}
	etcdlab.Isolated(m)
}
