package translate_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"weir.io/weir/internal/model"
	"weir.io/weir/kube/translate"
)

// A client that may write EndpointSlices may write nonsense into them. Endpoints that cannot be
// forwarded to are left out and reported; the others are forwarded to as if they were alone.
func TestNonsenseInSlices(t *testing.T) {
	const v4, v6 = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	good := slice(v4, "http", 8080, "a@n1=10.1.0.1")
	portless := slice(v4, "http", 8080, "b@n1=10.1.0.2")
	portless.Ports = nil
	unnumbered := slice(v4, "http", 8080, "b@n1=10.1.0.2")
	unnumbered.Ports[0].Port = nil
	nowhere := slice(v4, "http", 8080, "b@n1=10.1.0.2")
	nowhere.Endpoints[0].Addresses = nil
	for name, test := range map[string]struct {
		slice   *discoveryv1.EndpointSlice
		want    string // backends other than a
		problem string
	}{
		"no address at all":             {nowhere, "", ""},
		"a word":                        {slice(v4, "http", 8080, "b@n1=here"), "", `unable to parse IP`},
		"an address with a port":        {slice(v4, "http", 8080, "b@n1=10.1.0.2:80"), "", "the endpoint is left out"},
		"loopback":                      {slice(v4, "http", 8080, "b@n1=127.0.0.1"), "", "127.0.0.1 is a loopback address"},
		"multicast":                     {slice(v4, "http", 8080, "b@n1=239.1.1.1"), "", "239.1.1.1 is a multicast address"},
		"link-local":                    {slice(v4, "http", 8080, "b@n1=169.254.1.1"), "", "169.254.1.1 is link-local"},
		"nobody's":                      {slice(v4, "http", 8080, "b@n1=0.0.0.0"), "", "0.0.0.0 is not the address of a host"},
		"broadcast":                     {slice(v4, "http", 8080, "b@n1=255.255.255.255"), "", "255.255.255.255 is in 240.0.0.0/4"},
		"with a zone":                   {slice(v6, "http", 8080, "b@n1=fe80::1%eth0"), "", "has a zone"},
		"of the other family":           {slice(v4, "http", 8080, "b@n1=fd00::7"), "", ""},
		"names":                         {slice(discoveryv1.AddressTypeFQDN, "http", 8080, "b@n1=example.org"), "", ""},
		"no ports":                      {portless, "", ""},
		"a port without a number":       {unnumbered, "", ""},
		"port 0":                        {slice(v4, "http", 0, "b@n1=10.1.0.2"), "", ""},
		"port -1":                       {slice(v4, "http", -1, "b@n1=10.1.0.2"), "", ""},
		"port 65536":                    {slice(v4, "http", 65536, "b@n1=10.1.0.2"), "", ""},
		"the same address twice":        {slice(v4, "http", 8080, "b@n1=10.1.0.2", "c@n1=10.1.0.2", "a@n1=10.1.0.1"), "b", ""},
		"the same pod twice":            {slice(v4, "http", 8080, "b@n1=10.1.0.2", "b@n1=10.1.0.3"), "b 10.1.0.3:8080", ""},
		"a pod with the name of others": {slice(v4, "http", 8080, "10.1.0.3:8080@n1=10.1.0.2", "@n1=10.1.0.3"), "10.1.0.2:8080 10.1.0.3:8080", ""},
		"a name that is none":           {slice(v4, "http", 8080, "b\n c@n1=10.1.0.2"), "10.1.0.2:8080", ""},
		"a name of 1000 letters":        {slice(v4, "http", 8080, strings.Repeat("b", 1000)+"@n1=10.1.0.2"), "10.1.0.2:8080", ""},
		"one of them is good":           {slice(v4, "http", 8080, "b@n1=127.0.0.1", "c@n1=10.1.0.2"), "c", "127.0.0.1 is a loopback address"},
	} {
		options := translate.Options{Mode: model.NAT, SNAT: true, Backends: translate.Pods}
		services, problems := translate.Services(options, web(), []*discoveryv1.EndpointSlice{good, test.slice}, []netip.Addr{netip.MustParseAddr("203.0.113.1")}, translate.NewCluster(nodes))
		var names []string
		for _, b := range services[0].Backends {
			names = append(names, b.Name)
		}
		if got, want := strings.Join(names, " "), strings.TrimSpace("a "+test.want); got != want {
			t.Errorf("%s: the backends are %q, want %q", name, got, want)
		}
		said := slices.ContainsFunc(problems, func(p translate.Problem) bool { return strings.Contains(p.Message, test.problem) })
		if test.problem == "" && len(problems) > 0 || test.problem != "" && !said {
			t.Errorf("%s: the problems are %v, want %q", name, problems, test.problem)
		}
		c := model.Config{Services: services}
		c.Director.Interfaces, c.Director.SNAT = []string{"eth0"}, model.SNAT{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: model.PortRange{First: 1024, Last: 2047}}
		c.SetDefaults()
		if err := c.Validate(); err != nil {
			t.Errorf("%s: no director takes it: %v", name, err)
		}
	}
}
