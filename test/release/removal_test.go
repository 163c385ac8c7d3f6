package release

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// host makes a copy of this machine's files that is gone with the process, with a network of its own
// where eth0 has a veth's end, and with a BPF file system. It is a host without systemd and its commands:
// nothing ends weir's processes there. $1 is an empty directory, $2 a package, and the functions are for the scripts that follow.
const host = `set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cp "$2" "$1/root/root/${2##*/}"
mount -t proc proc "$1/root/proc"
mount -t sysfs sysfs "$1/root/sys"
mount -t bpf bpf "$1/root/sys/fs/bpf"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/run"
exec chroot "$1/root" bash -eu -c "$3" bash "/root/${2##*/}"
`

const director = `
rm -rf /etc/weir /var/lib/weir /var/lib/weir-removed
rm -f /usr/bin/systemd-sysusers /usr/bin/systemd-tmpfiles
ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip address add 10.0.0.2/24 dev eth0
attached() { ip -details link show eth0 | grep --quiet xdp; }
fail() { echo "wrong: $*"; exit 1; }
start() {
	cat >/etc/weir/weir.yaml <<-END
		director: {interfaces: [eth0], xdp: generic}
		services:
		- {name: web, vip: 203.0.113.10, protocol: tcp, port: 80, mode: nat, backends: [{name: a, address: 10.0.0.9}]}
	END
	weir run 2>/root/log &
	process=$!
	for try in $(seq 300); do attached && return; sleep 0.1; done # between two looks
	fail "the director attaches nothing: $(cat /root/log)"
}
stop() { kill "$process"; wait "$process" || true; }
refused() {
	if "$@" >/root/said 2>&1; then fail "$* has not failed: $(cat /root/said)"; fi
	grep --quiet "a director runs (process $process): stop it first" /root/said || fail "$* says $(cat /root/said)"
	attached || fail "after $* nothing is attached"
}
nothing() {
	for path in "$@"; do [ ! -e "$path" ] || fail "there is still $(find "$path")"; done
	! attached || fail "a program is still attached"
}
`

// linked has the configuration and the state elsewhere. What is there is not the package's to remove.
const linked = `
mkdir -p /srv/weir/keys /srv/state /srv/other
echo secret >/srv/weir/keys/bgp
echo other >/srv/other/file
ln -s /srv/other /srv/weir/other
ln -s /srv/weir /etc/weir
ln -s /srv/state /var/lib/weir
stays() {
	for path in /srv/weir/keys/bgp /srv/weir/weir.yaml /srv/weir/other /srv/other/file; do [ -e "$path" ] || fail "$path has gone"; done
	[ -n "$(ls -A /srv/state)" ] || fail "the state has gone"
}
`

// A package whose removal has to detach a director that still runs, because no systemd ends it, says so
// and is removed the next time: else nothing would be left to detach with.
func checkRemoval(t *testing.T, r release) {
	rpmArchitecture := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	debFile, rpmFile := "weir_VERSION-1_"+runtime.GOARCH+".deb", "weir-VERSION-1."+rpmArchitecture+".rpm"
	for _, of := range []struct{ name, file, script string }{
		{"deb", debFile, `
dpkg --purge weir 2>/dev/null
dpkg --install "$1"
start
dpkg --remove weir
attached || fail "forwarding has ended with the removal"
refused dpkg --purge weir
[ -e /etc/weir/weir.yaml ] || fail "the refused purge has removed the configuration"
stop
dpkg --purge weir
nothing /etc/weir /var/lib/weir /var/lib/weir-removed /run/weir /sys/fs/bpf/weir /usr/bin/weir
`},
		{"rpm", rpmFile, `
rpm --install --nodeps "$1"
start
refused rpm --erase weir
[ -x /usr/bin/weir ] || fail "the refused removal has removed the program"
stop
rpm --erase weir
nothing /sys/fs/bpf/weir /usr/bin/weir
`},
		{"deb with links", debFile, linked + `
dpkg --purge weir 2>/dev/null
dpkg --install "$1"
start
stop
dpkg --remove weir
dpkg --purge weir 2>/root/said || fail "the purge ends with $?: $(cat /root/said)"
nothing /etc/weir /var/lib/weir /var/lib/weir-removed /run/weir /sys/fs/bpf/weir /usr/bin/weir /srv/weir/weir.yaml.example
stays
for link in /etc/weir:/srv/weir /var/lib/weir:/srv/state; do
	grep --quiet "the link ${link%:*} goes, and what is in ${link#*:} stays" /root/said || fail "of $link the purge says $(cat /root/said)"
done
`},
		{"rpm with links", rpmFile, linked + `
rpm --install --nodeps "$1"
start
stop
rpm --erase weir
nothing /sys/fs/bpf/weir /usr/bin/weir /srv/weir/weir.yaml.example
stays
[ -L /etc/weir ] && [ -L /var/lib/weir ] || fail "the links have gone"
`},
	} {
		t.Run(of.name, func(t *testing.T) {
			file, err := filepath.Abs(r.path(of.file))
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child",
				"bash", "-c", host, "bash", t.TempDir(), file, director+of.script).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, strings.TrimSpace(string(out)))
			}
		})
	}
}
