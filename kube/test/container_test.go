package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.io/weir/lab/netlab"
)

// serviceAddress is the API server's address for pods, also in its certificate: the first one of
// Services. The API server's host has it and others a route to it, in place of a kube-proxy.
const serviceAddress = "10.96.0.1"

// hostedPod runs the containers of one pod on a host of the lab, as a kubelet does.
type hostedPod struct {
	t      *testing.T
	host   *netlab.Host
	of     *cluster          // whose pod it is
	mounts map[string]string // directories of the host, by mount path
	dir    string            // the directory with the token of the pod's account
	made   *corev1.Pod
}

// newHostedPod gives a pod, which is bound to a node, the files of its account for its containers.
func newHostedPod(t *testing.T, host *netlab.Host, of *cluster, made *corev1.Pod, mounts map[string]string) *hostedPod {
	t.Helper()
	p := &hostedPod{t: t, host: host, of: of, mounts: mounts, dir: filepath.Join(host.Dir(), "pod-"+made.Name), made: made}
	for _, dir := range mounts {
		p.mkdir(dir)
	}
	p.mkdir(p.dir)
	p.mkdir(secrets)
	token, err := podToken(t.Context(), of.core, made)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"token": token, "namespace": made.Namespace, "ca.crt": of.read(filepath.Join(of.dir, "certificates", "apiserver.crt"))} {
		p.write(filepath.Join(p.dir, name), text)
	}
	return p
}

func (p *hostedPod) mkdir(dir string) {
	p.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *hostedPod) write(path, text string) {
	p.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// volumes writes the content of the pod's Secret and ConfigMap volumes into its mounts.
func (p *hostedPod) volumes(spec corev1.PodSpec, c corev1.Container) {
	p.t.Helper()
	for _, v := range spec.Volumes {
		data := map[string]string{}
		switch {
		case v.Secret != nil:
			secret, err := p.of.core.Secrets(p.made.Namespace).Get(p.t.Context(), v.Secret.SecretName, metav1.GetOptions{})
			if err != nil {
				p.t.Fatal(err)
			}
			for _, item := range v.Secret.Items {
				data[item.Path] = string(secret.Data[item.Key])
			}
		case v.ConfigMap != nil:
			config, err := p.of.core.ConfigMaps(p.made.Namespace).Get(p.t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				p.t.Fatal(err)
			}
			data = config.Data
		}
		for _, m := range c.VolumeMounts {
			for name, text := range data {
				if m.Name == v.Name {
					p.write(filepath.Join(p.mounts[m.MountPath], name), text)
				}
			}
		}
	}
}

// secrets is where container runtimes put the files of a pod's account.
const secrets = "/run/secrets"

// asPod is a shell script that mounts them there, in its own mount namespace, and then executes the
// given program.
const asPod = `mount -t tmpfs tmpfs ` + secrets + ` && mkdir ` + secrets + `/kubernetes.io && ln -s "$0" ` + secrets + `/kubernetes.io/serviceaccount && exec "$@"`

// start starts a container with its arguments, with the host's directories in place of its mounts,
// and its environment, as root with only its capabilities. It finds the API server as pods do.
func (p *hostedPod) start(c corev1.Container, program string) *netlab.Command {
	p.t.Helper()
	value := map[string]string{"metadata.name": p.made.Name, "metadata.namespace": p.made.Namespace, "metadata.uid": string(p.made.UID), "spec.nodeName": p.made.Spec.NodeName}
	environment := []string{"KUBERNETES_SERVICE_HOST=" + serviceAddress, "KUBERNETES_SERVICE_PORT=6443"}
	for _, e := range c.Env {
		environment = append(environment, e.Name+"="+value[e.ValueFrom.FieldRef.FieldPath])
	}
	var here []string
	for path, dir := range p.mounts {
		here = append(here, path, dir)
	}
	capabilities := "-all"
	for _, name := range c.SecurityContext.Capabilities.Add {
		capabilities += ",+" + strings.ToLower(string(name))
	}
	args := []string{"--mount", "--", "sh", "-c", asPod, p.dir, "setpriv", "--inh-caps=-all", "--bounding-set=" + capabilities, "--no-new-privs", program}
	for _, a := range c.Args {
		args = append(args, strings.NewReplacer(here...).Replace(a))
	}
	return startWith(p.t, p.host, filepath.Join(p.host.Dir(), c.Name+".log"), environment, "unshare", args...)
}
