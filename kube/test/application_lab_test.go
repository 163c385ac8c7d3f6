package kube

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/internal/api"
	control "weir.io/weir/kube/test/cluster"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/routerlab"
)

// applicationLab is
//
//	client --- border --- switch --- node --- shop-1 shop-2 ... directors of shop
//	                             |        --- blog-1            that of blog
//	                             |        --- pod1 pod2 pod3    nginx
//	                             --- reflector
//	                             --- control
//
// where the directors are pods, from two releases of the chart, each with its application. They
// announce only to the reflector, which has no configuration of any of them; from it the border and
// the node learn the VIPs. Pods have a network like that of CNIs: veths without XDP, which leave
// checksums and segmentation to the receiver, and a route for each.
type applicationLab struct {
	*lab
	border, node, reflector *netlab.Host
	releases                map[string]appsv1.Deployment // by their namespace
	addresses               int                          // of all pods so far
}

const (
	nodeAddress      = "10.2.0.11"
	reflectorAddress = "10.2.0.9"
	gateway          = "169.254.1.1" // of pods, on the node

	reflectorText = `
router bgp 65000
 bgp router-id 10.2.0.9
 bgp cluster-id 10.2.0.9
 neighbor directors peer-group
 neighbor directors remote-as 65000
 bgp listen range 10.244.0.0/16 peer-group directors
 neighbor routers peer-group
 neighbor routers remote-as 65000
 neighbor 10.2.0.1 peer-group routers
 neighbor 10.2.0.11 peer-group routers
 address-family ipv4 unicast
  neighbor directors route-reflector-client
  neighbor routers route-reflector-client
  neighbor routers addpath-tx-all-paths
 exit-address-family
`
	learnsText = `
router bgp 65000
 neighbor 10.2.0.9 remote-as 65000
 neighbor 10.2.0.9 timers 3 9
 address-family ipv4 unicast
  maximum-paths ibgp 16
 exit-address-family
`
)

func newApplicationLab(t *testing.T) *applicationLab {
	t.Helper()
	needsAPIServer(t)
	needs(t, map[string]string{"kube-controller-manager in $WEIR_KUBE_CONTROLLER_MANAGER": controllers})
	n := netlab.ForTest(t)
	l := &applicationLab{lab: &lab{net: n, client: n.Host("client")}, border: n.Router("border"), node: n.Router("node"), reflector: n.Host("reflector"),
		releases: map[string]appsv1.Deployment{}}
	lan, server := n.Switch("switch"), n.Host("control")
	n.Link(l.client, l.border, netlab.LinkOptions{A: []string{"10.0.0.2/24"}, B: []string{"10.0.0.1/24"}})
	n.Link(l.border, lan, netlab.LinkOptions{A: []string{"10.2.0.1/24"}})
	n.Link(l.node, lan, netlab.LinkOptions{A: []string{nodeAddress + "/24"}})
	n.Link(l.reflector, lan, netlab.LinkOptions{A: []string{reflectorAddress + "/24"}})
	n.Link(server, lan, netlab.LinkOptions{A: []string{controlAddress + "/24"}})
	l.client.Route("default", "10.0.0.1")
	l.node.Route("default", "10.2.0.1")
	l.node.Sysctl("net.ipv4.fib_multipath_hash_policy", "1")
	for _, h := range []*netlab.Host{l.border, l.reflector, server} {
		h.Route("10.244.1.0/24", nodeAddress)
	}
	if err := n.Err(); err != nil {
		t.Fatal(err)
	}
	for h, text := range map[*netlab.Host]string{l.reflector: reflectorText, l.border: learnsText, l.node: learnsText} {
		frr, err := routerlab.StartFRR(h, routerlab.FRRConfig{BGP: text})
		if err != nil {
			t.Fatal(err)
		}
		if err := frr.Configure("no zebra nexthop kernel enable"); err != nil { // routes are replaced in one step
			t.Fatal(err)
		}
	}
	l.cluster = newCluster(t, server)
	if err := l.control.StartControllers(controllers, "garbage-collector-controller"); err != nil {
		t.Fatal(err)
	}
	l.applyResources()
	l.makeSystem()
	l.applyChart("--values", "testdata/chart/small.values.yaml")
	l.kubeconfigFile = l.kubeconfig("weir-system", "weir-kube")
	t.Cleanup(l.logEvents)
	l.config = l.write("weir-kube.yaml", "lease: {namespace: weir-system, name: weir-kube, duration: 4s}\n")
	return l
}

// release installs the chart with an application, in its namespace.
func (l *applicationLab) release(application string) {
	l.t.Helper()
	if _, _, err := l.make("{apiVersion: v1, kind: Namespace, metadata: {name: " + application + "}}"); err != nil {
		l.t.Fatal(err)
	}
	objects := l.applyChart("--namespace", application, "--values", "testdata/"+application+".values.yaml")
	var deployment appsv1.Deployment
	fromYAML(l.t, []byte(objects["Deployment"]), &deployment)
	l.releases[application] = deployment
}

// plug makes a pod's network, as a CNI does, and returns its address.
func (l *applicationLab) plug(name string) (*netlab.Host, string) {
	l.t.Helper()
	l.addresses++
	address := fmt.Sprintf("10.244.1.%d", 10+l.addresses)
	h, port := l.net.Router(name), "to-"+name // the kernel copies the node's ip_forward
	l.net.Link(l.node, h, netlab.LinkOptions{NameA: port, A: []string{gateway + "/32"}, B: []string{address + "/32"}})
	if err := l.net.Err(); err != nil {
		l.t.Fatal(err)
	}
	runOn(l.t, l.node, "ip", "route", "add", address+"/32", "dev", port)
	runOn(l.t, h, "ip", "route", "add", gateway, "dev", "eth0")
	runOn(l.t, h, "ip", "route", "add", "default", "via", gateway)
	return h, address
}

func runOn(t *testing.T, h *netlab.Host, program string, args ...string) {
	t.Helper()
	if out, err := h.Command(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v on %s: %v: %s", program, args, h.Name, err, out)
	}
}

// large is many times the size of a sender's segments.
const large = 4 << 20

const nginxText = `
daemon off; worker_processes 1; user root; pid DIR/nginx.pid; error_log stderr;
events { worker_connections 1024; }
http {
	access_log off; default_type text/plain; keepalive_timeout 0;
	client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;
	server {
		listen PORT; root DIR; client_max_body_size 8m; add_header Seen-Client $remote_addr;
		location / { return 200 "NAME"; }
		location /large { }
		location /count { proxy_pass http://127.0.0.1:PORT/; }
	}
}
`

// nginx starts a pod of an application, and returns its address.
func (l *applicationLab) nginx(name string) string {
	l.t.Helper()
	h, address := l.plug(name)
	conf := filepath.Join(h.Dir(), "nginx.conf")
	text := strings.NewReplacer("DIR", h.Dir(), "NAME", name, "PORT", fmt.Sprint(podPort)).Replace(nginxText)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir(), "large"), make([]byte, large), 0o644); err != nil {
		l.t.Fatal(err)
	}
	start(l.t, h, filepath.Join(h.Dir(), "nginx.log"), "nginx", "-e", "stderr", "-c", conf)
	return address
}

// serves makes an application's Service, with the same name, and its pods.
func (l *applicationLab) serves(application string, pods ...string) {
	l.t.Helper()
	ours, yes := class, true
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: application}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &ours, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	slice := l.newSlice(application)
	for _, address := range pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
	}
	if _, err := l.core.Services(application).Create(l.t.Context(), s, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.discovery.EndpointSlices(application).Create(l.t.Context(), slice, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// ingress returns the address and mode in the status of an application's Service.
func (l *applicationLab) ingress(application string) string {
	s, err := l.core.Services(application).Get(l.t.Context(), application, metav1.GetOptions{})
	if err != nil || len(s.Status.LoadBalancer.Ingress) != 1 || s.Status.LoadBalancer.Ingress[0].IPMode == nil {
		return fmt.Sprint(err)
	}
	return s.Status.LoadBalancer.Ingress[0].IP + " " + string(*s.Status.LoadBalancer.Ingress[0].IPMode)
}

// hops returns the pods to which the node sends a VIP's packets, or an error text if the border
// does not send them to the node.
func (l *applicationLab) hops(vip string) string {
	prefix := netip.MustParsePrefix(vip + "/32")
	atBorder, err1 := routerlab.NextHops(l.border, prefix)
	atNode, err2 := routerlab.NextHops(l.node, prefix)
	if err1 != nil || err2 != nil || len(atBorder) == 0 || atBorder[0].String() != nodeAddress {
		return fmt.Sprint("the border sends to ", atBorder, err1, err2)
	}
	return strings.Trim(fmt.Sprint(atNode), "[]")
}

func (l *applicationLab) waitForHops(vip string, pods ...*directorPod) {
	l.t.Helper()
	var list []string
	for _, p := range pods {
		list = append(list, p.address)
	}
	want := strings.Join(list, " ")
	waitFor(l.t, fmt.Sprintf("the node to send %s to %q", vip, want), func() bool { return l.hops(vip) == want })
}

// directorPod is a pod of a release's Deployment.
type directorPod struct {
	*netlab.Host
	l             *applicationLab
	namespace     string
	address       string
	pins          string // the directory for all pods of its group on the node
	weir, sidecar *netlab.Command
}

// director makes a pod from the Deployment, and does what its kubelet does.
func (l *applicationLab) director(application, name string) *directorPod {
	l.t.Helper()
	p := &directorPod{l: l, namespace: application}
	p.Host, p.address = l.plug(name)
	template := l.releases[application].Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec}
	pod.Spec.NodeName = l.node.Name
	made, err := l.core.Pods(application).Create(l.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			p.pins = filepath.Join(l.node.BPFFS(), strings.TrimPrefix(v.HostPath.Path, "/sys/fs/bpf"))
		}
	}
	for _, dir := range []string{p.pins, p.at("state"), p.at("run")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			l.t.Fatal(err)
		}
	}
	config := l.write(name+".kubeconfig", strings.ReplaceAll(l.read(l.podKubeconfig(made)), control.ServerURL, "https://"+controlAddress+":6443"))
	if err := p.start(made, pod.Spec.InitContainers[0], weirKube, "--kubeconfig", config).Wait(); err != nil {
		l.t.Fatalf("%s writes no file: %v", name, err)
	}
	p.weir = p.start(made, pod.Spec.Containers[0], weir)
	p.sidecar = p.start(made, pod.Spec.Containers[1], weirKube, "--kubeconfig", config)
	return p
}

func (p *directorPod) at(name string) string { return filepath.Join(p.Dir(), name) }

// start starts a container with its arguments, as root with only its capabilities.
func (p *directorPod) start(pod *corev1.Pod, c corev1.Container, program string, more ...string) *netlab.Command {
	p.l.t.Helper()
	value := map[string]string{"metadata.name": p.Name, "metadata.namespace": p.namespace, "metadata.uid": string(pod.UID), "status.podIPs": p.address}
	here := []string{"/var/lib/weir", p.at("state"), "/run/weir", p.at("run"), "/sys/fs/bpf", p.pins}
	environment := []string{}
	for _, e := range c.Env {
		v := value[e.ValueFrom.FieldRef.FieldPath]
		environment = append(environment, e.Name+"="+v)
		here = append(here, "$("+e.Name+")", v)
	}
	capabilities := "-all"
	for _, name := range c.SecurityContext.Capabilities.Add {
		capabilities += ",+" + strings.ToLower(string(name))
	}
	args := []string{"--inh-caps=-all", "--bounding-set=" + capabilities, "--no-new-privs", program}
	for _, a := range c.Args {
		args = append(args, strings.NewReplacer(here...).Replace(a))
	}
	return startWith(p.l.t, p.Host, p.at(c.Name+".log"), environment, "setpriv", append(args, more...)...)
}

func (p *directorPod) api() *api.Client { return api.NewClient(p.at("run/director.sock")) }

// forwards returns the services of the pod's director.
func (p *directorPod) forwards() string {
	documents, err := p.api().Documents(p.l.t.Context(), "kube."+p.namespace+".0")
	if err != nil {
		return err.Error()
	}
	var names []string
	for _, d := range documents {
		names = append(names, d.Service.Name)
	}
	return strings.Join(names, " ")
}

// delete deletes the pod and, like its kubelet, tells both containers to end.
func (p *directorPod) delete() {
	p.l.t.Helper()
	if err := p.l.core.Pods(p.namespace).Delete(p.l.t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
		p.l.t.Fatal(err)
	}
	for _, c := range []*netlab.Command{p.weir, p.sidecar} {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			p.l.t.Fatal(err)
		}
	}
}

// gone removes the pod's network, and then its object.
func (p *directorPod) gone() {
	p.l.t.Helper()
	runOn(p.l.t, p.l.node, "ip", "link", "delete", "to-"+p.Name)
	now := int64(0)
	if err := p.l.core.Pods(p.namespace).Delete(p.l.t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		p.l.t.Fatal(err)
	}
}
