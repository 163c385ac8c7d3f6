package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weir.io/weir/lab/process"
)

// PodPort is where pods listen.
const PodPort = 8080

// slowSize is the bytes of a long answer, and slowRate how many of them come in a second.
const slowSize, slowRate = 40 << 10, 20 << 10

// heldSize is the bytes of an answer that is held for long.
const heldSize = 2000 << 10

// LargeSize is the bytes of a large request or answer.
const LargeSize = 8 << 20

// HeldAnswer is about how long a held answer takes: it has to outlive an outage of the API server.
const HeldAnswer = heldSize / slowRate * time.Second

// LongAnswer is about how long a long answer takes: it has to go on while its pod is told to end.
const LongAnswer = slowSize / slowRate * time.Second

// grace is how long pods may take to end: the Deployment's terminationGracePeriodSeconds.
const grace = int64(30)

// Pod is a running pod.
type Pod struct {
	Name     string
	Address  netip.Addr
	Address6 netip.Addr
	Node     *Node

	port  int
	site  *Site
	slot  *slot
	nginx *process.Process
}

// StartPod makes a pod of a Service on a node, and does what its kubelet does until the pod runs:
// it is not ready yet.
func (s *Site) StartPod(ctx context.Context, n *Node, app string) (*Pod, error) {
	room, err := n.free()
	if err != nil {
		return nil, err
	}
	return s.startPod(ctx, &Pod{Address: room.address, Address6: room.six, Node: n, site: s, slot: room, port: PodPort}, app)
}

// StartHostPod makes a pod in its node's own network, with the node's addresses.
func (s *Site) StartHostPod(ctx context.Context, n *Node, app string, port int) (*Pod, error) {
	return s.startPod(ctx, &Pod{Address: n.Address, Address6: n.Address6, Node: n, site: s, slot: &slot{host: n.host}, port: port}, app)
}

func (s *Site) startPod(ctx context.Context, p *Pod, app string) (*Pod, error) {
	s.pods++
	p.Name = fmt.Sprintf("%s-%d", app, s.pods)
	n := p.Node
	no, ending := false, grace
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: n.Name, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &ending,
			Containers: []corev1.Container{{Name: "nginx", Image: "nginx", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(p.port)}}}}}}
	object.Spec.HostNetwork = p.Address == n.Address
	if _, err := s.Core.Pods(Namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("make pod %s: %w", p.Name, err)
	}
	if err := p.serve(ctx); err != nil {
		return nil, err
	}
	return p, p.status(ctx, corev1.ConditionFalse)
}

const nginxText = `
daemon off; worker_processes 1; user root; pid DIR/nginx.pid; error_log stderr;
events { worker_connections 4096; }
http {
	access_log off; default_type text/plain; keepalive_timeout 0; client_header_timeout 5s; sendfile off; output_buffers 1 4k; client_max_body_size 64m;
	client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR;
	server {
		listen PORT backlog=4096; listen [::]:PORT backlog=4096 ipv6only=on; root DIR; add_header Seen-Client $remote_addr; add_header Pod NAME;
		location / { return 200 "NAME"; }
		location /slow { limit_rate RATE; }
		location /held { limit_rate RATE; }
		location /large { output_buffers 2 128k; }
		location /count { proxy_hide_header Seen-Client; proxy_hide_header Pod; proxy_pass http://127.0.0.1:PORT/; }
	}
}
`

// serve starts nginx, and waits until it listens.
func (p *Pod) serve(ctx context.Context) (err error) {
	host := p.slot.host
	dir := filepath.Join(host.Dir(), p.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of pod %s: %w", p.Name, err)
	}
	text := strings.NewReplacer("DIR", dir, "NAME", p.Name, "PORT", fmt.Sprint(p.port), "RATE", fmt.Sprint(slowRate)).Replace(nginxText)
	conf := filepath.Join(dir, "nginx.conf")
	err1 := os.WriteFile(conf, []byte(text), 0o644)
	err2 := os.WriteFile(filepath.Join(dir, "slow"), []byte(strings.Repeat("x", slowSize)), 0o644)
	err3 := os.WriteFile(filepath.Join(dir, "held"), []byte(strings.Repeat("x", heldSize)), 0o644)
	err4 := zeros(filepath.Join(dir, "large"), LargeSize)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return fmt.Errorf("write files of pod %s: %w", p.Name, err)
	}
	if p.nginx, err = process.Start(host, p.Name, "nginx", "-e", "stderr", "-c", conf); err != nil {
		return err
	}
	return p.nginx.Await(ctx, "listen", func() error {
		conn, err := host.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", p.port))
		if err == nil {
			conn.Close()
		}
		return err
	})
}

// zeros makes a sparse file of this many bytes.
func zeros(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}

// Ready writes that the pod is ready, and returns when the write began.
func (p *Pod) Ready(ctx context.Context) (time.Time, error) {
	began := time.Now()
	return began, p.status(ctx, corev1.ConditionTrue)
}

// NotReady writes that the pod is not ready.
func (p *Pod) NotReady(ctx context.Context) error { return p.status(ctx, corev1.ConditionFalse) }

// status writes the pod's status, as its kubelet does.
func (p *Pod) status(ctx context.Context, ready corev1.ConditionStatus) error {
	now := metav1.Now()
	is := ready == corev1.ConditionTrue
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, HostIP: p.Node.Address.String(), HostIPs: []corev1.HostIP{{IP: p.Node.Address.String()}, {IP: p.Node.Address6.String()}},
		PodIP: p.Address.String(), PodIPs: []corev1.PodIP{{IP: p.Address.String()}, {IP: p.Address6.String()}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "nginx", Image: "nginx", ImageID: "nginx", ContainerID: "lab://" + p.Name, Ready: is, Started: &is,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}}
	for kind, value := range map[corev1.PodConditionType]corev1.ConditionStatus{corev1.PodScheduled: corev1.ConditionTrue, corev1.PodInitialized: corev1.ConditionTrue,
		corev1.ContainersReady: ready, corev1.PodReady: ready} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: now})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("write the status of pod %s: %w", p.Name, err)
	}
	if _, err := p.site.Core.Pods(Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write the status of pod %s: %w", p.Name, err)
	}
	return nil
}

// Delete tells the pod to end, as a Deployment does, and returns when the request began. The pod
// works on until [Pod.End].
func (p *Pod) Delete(ctx context.Context) (time.Time, error) {
	began := time.Now()
	if err := p.site.Core.Pods(Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
		return began, fmt.Errorf("delete pod %s: %w", p.Name, err)
	}
	return began, nil
}

// End does what a kubelet does with a deleted pod after its preStop hook: it tells nginx to end
// after its open requests (SIGQUIT), and when nginx has ended, it removes the object.
func (p *Pod) End(ctx context.Context) error {
	if err := syscall.Kill(p.nginx.PID(), syscall.SIGQUIT); err != nil {
		return fmt.Errorf("end pod %s: %w", p.Name, err)
	}
	if err := p.nginx.Gone(ctx); err != nil {
		return err
	}
	return p.remove(ctx)
}

func (p *Pod) remove(ctx context.Context) error {
	now := int64(0)
	err := p.site.Core.Pods(Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take pod %s out: %w", p.Name, err)
	}
	p.slot.busy = false
	return nil
}

// Connections returns how many connections with the pod are established.
func (p *Pod) Connections() (n int) {
	four, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", p.nginx.PID()))
	six, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp6", p.nginx.PID()))
	if err1 != nil || err2 != nil {
		return 0
	}
	text := append(four, six...)
	port := fmt.Sprintf(":%04X", p.port)
	for line := range strings.Lines(string(text)) {
		// sl local_address rem_address st: state 1 is established (proc(5)).
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], port) && f[3] == "01" {
			n++
		}
	}
	return n
}
