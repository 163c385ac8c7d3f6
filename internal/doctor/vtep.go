package doctor

import "fmt"

// vtep checks that this host has the addresses where tunnels of tenants' networks end: without them other VTEPs find
// nobody, and the kernel takes no part in finding the director.
func (x *examination) vtep() {
	for _, a := range x.config.Director.VTEP.Addresses {
		check := "vtep " + a.String()
		if index, here := x.addresses[a]; here {
			x.ok(check, "is an address of %s", x.links[index].Attrs().Name)
			continue
		}
		on := "eth0"
		if names := x.config.Director.Interfaces; len(names) > 0 {
			on = names[0]
		}
		x.fail(check, fmt.Sprintf("ip addr add %s/%d dev %s, with the length of its network, or name an address of this host in director.vtep.addresses", a, a.BitLen(), on),
			"is on no interface of this host: no tunnel of a tenant's network ends here, and no packet of theirs is forwarded")
	}
}
