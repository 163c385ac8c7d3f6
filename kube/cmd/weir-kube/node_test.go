package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestPodFlags(t *testing.T) {
	for given, want := range map[podFlags]string{
		{}:                        "<nil>",
		{addresses: "10.244.1.7"}: "<nil>", // of a node's director, whose pod has addresses, too
		{name: "a", addresses: "10.244.1.7,2001:db8::7", uid: "u", bpffs: "/b"}: "&{a u [10.244.1.7 2001:db8::7] /b}",
		{name: "a"}: "--pod-addresses: ",
	} {
		pod, err := given.read()
		got := fmt.Sprint(pod)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%+v is %s, want %s", given, got, want)
		}
	}
}
