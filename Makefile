# Everything one does with weir. A target installs what it lacks from Debian first,
# so each works as the only command on a fresh machine; most of them need root.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Flags for the program behind a target: make demo ARGS="--duration 10s --json"
ARGS ?=

# Where "make install" installs: below DESTDIR, which packagers set.
PREFIX ?= /usr/local
DESTDIR ?=

about := $(shell .ci/version)
VERSION := $(word 1,$(about))
linked := -s -w -X main.version=$(VERSION) -X main.commit=$(word 2,$(about))

# A Go that .ci/deps had to fetch comes first; the usual places come last, for sudo.
export PATH := $(CURDIR)/build/go/bin:$(PATH):/usr/local/go/bin
export CGO_ENABLED := 0
# What is released is built with it, so all else is, too: with other flags all packages would be
# compiled a second time.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath)

# go.work lists weir's modules, and "work" stands for the packages of all of them. The programs that
# tests need of Kubernetes are modules of their own, which no other module knows.
outside := GOWORK=off go

# What each job needs. The package golang is not here: .ci/deps looks for a Go first.
deps_build    :=
deps_demo     := iproute2
deps_test     := iproute2 ethtool iptables nftables tcpdump tshark iperf3 nginx-light curl wrk redis-server postgresql etcd-server \
                 frr bird2 gobgpd ovn-central ovn-host openvswitch-switch exabgp ngtcp2-client ngtcp2-server libusrsctp-dev clang-19 llvm-19 libbpf-dev linux-libc-dev python3-venv strace prometheus systemd python3-aiosmtpd
deps_venv     := python3-venv
deps_neutron  := mariadb-server-core mariadb-client-core
deps_chaos    := iproute2 ethtool iptables nftables etcd-server clang-19 llvm-19 libbpf-dev linux-libc-dev
deps_bench    := iproute2 ethtool iptables nftables iperf3 nginx-light libnginx-mod-stream haproxy wrk frr
deps_generate := clang-19 llvm-19 libbpf-dev linux-libc-dev
deps_lint     := clang-format-19
deps_kubernetes := iproute2 etcd-server nftables nginx-light frr
deps_kernels  := qemu-system-x86 xz-utils
deps_nic      := xz-utils debian-archive-keyring
deps_image    := buildah
deps_release  := buildah xz-utils
deps_test-release := lintian rpm iproute2 qemu-user-static man-db openssh-client
deps_podman   := podman runc iproute2
deps_debug    := bpftool
deps_web      := chromium frr iproute2 openssl

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what is missing for all of the below (Debian, root)
	@.ci/deps $(deps_build) $(deps_demo) $(deps_test) $(deps_chaos) $(deps_bench) $(deps_generate) $(deps_lint) \
		$(deps_kernels) $(deps_image) $(deps_debug)
	@$(MAKE) venv web/node_modules/.package-lock.json

deps-%:
	@.ci/deps $(deps_$*)

.PHONY: generate
generate: deps-build deps-generate ## compile bpf/ and write its Go side, which is committed
	@go generate work

# What make prints goes to stderr: the demo's JSON must be alone on stdout.
.PHONY: build
build: deps-build ## build bin/weir, one static binary
	@go build -trimpath -buildvcs=false -ldflags '$(linked)' \
		-o bin/weir ./cmd/weir >&2

# A lab with real traffic, which users of weir do not run: it is not in bin/weir.
.PHONY: build-demo
build-demo: build ## build bin/weir-demo, the laboratory of make demo
	@go build -trimpath -buildvcs=false -o bin/weir-demo ./cmd/weir-demo >&2

.PHONY: build-kube
build-kube: deps-build ## build bin/weir-kube, the controller for Kubernetes
	@go build -trimpath -buildvcs=false -ldflags '$(linked)' \
		-o bin/weir-kube ./kube/cmd/weir-kube >&2

# In a mount namespace of its own with a bpffs of its own: the pins and named network
# namespaces of the tests are not this host's, and none of them can stay behind.
private := unshare --mount --propagation private -- \
	bash -c 'mount -t bpf bpf /sys/fs/bpf && exec "$$@"' --

.PHONY: venv
venv: build/venv/installed ## install schemathesis, which tries the API by its document, into build/venv

build/venv/installed: test/contract/requirements.txt
	@.ci/deps $(deps_venv)
	@rm -rf build/venv
	@python3 -m venv build/venv >&2
	@build/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $< >&2
	@touch $@

.PHONY: neutron-venv
neutron-venv: build/neutron-venv/installed ## install Neutron, which make test-neutron runs, into build/neutron-venv: 350 MB

build/neutron-venv/installed: test/neutron/requirements.txt
	@.ci/deps $(deps_venv)
	@rm -rf build/neutron-venv
	@python3 -m venv build/neutron-venv >&2
	@build/neutron-venv/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $< >&2
	@touch $@

build/docs-venv/installed: docs/site/requirements.txt
	@.ci/deps $(deps_venv)
	@rm -rf build/docs-venv
	@python3 -m venv build/docs-venv >&2
	@build/docs-venv/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $< >&2
	@touch $@

# The theme has critical fixes until May 2027; Zensical, its successor, reads the same mkdocs.yml.
.PHONY: docs
docs: build/docs-venv/installed ## build the documents as a site into build/site
	@NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml >&2
	@! grep --recursive --include='*.html' --extended-regexp '<(script|link|img|iframe)[^>]* (src|href)="?https?:' build/site >&2

# How many requests are made up for each operation.
EXAMPLES ?= 500

.PHONY: contract
contract: deps-test build venv ## try the API by its document, some minutes: EXAMPLES=500
	@WEIR_CONTRACT_EXAMPLES=$(EXAMPLES) $(private) go test ./cmd/weir -count 1 -timeout 60m -run '^TestContract$$' -v $(ARGS)

# The lab has the machine to itself: what weir talks to there has timers of its own (BFD, BGP,
# etcd's leases). Its tests run four at a time, but for the few that load both CPUs. So do the
# rest's packages, of which what takes longest begins first: else it would run alone in the end.
# The target format vets all of it.
.PHONY: test
test: deps-test build venv ## run every test, as root: pure, packet tables, lab
	@status=0; $(private) go test -vet=off -timeout 30m -parallel 4 $(ARGS) ./test || status=$$?; \
	$(private) go test -vet=off -timeout 30m -p 4 $(ARGS) ./internal/datapath $$(go list work | grep -vx weir.io/weir/test) || status=$$?; \
	exit $$status

.PHONY: cases
cases: deps-test build venv ## try again what attackers and operators have found, and say of each whether it is right now: ARGS="-run B6"
	@$(private) go run ./test/cases $(ARGS)

# How long each flood lasts.
FLOOD ?= 60s

.PHONY: floods
floods: deps-test build ## flood five kinds of services, three of them in IPv6 too, with made-up flows beside real clients, 45 minutes: FLOOD=20s
	@WEIR_FLOODS=$(FLOOD) $(private) go test ./test -count 1 -timeout 90m -run '^(TestFloods|TestFloodIsSharedWithinABudget)$$' -v $(ARGS)

TENANTS ?= 10m

.PHONY: tenants
tenants: deps-test build ## see tenants of all kinds of networks, with the same addresses, stay apart, ten minutes: TENANTS=1m
	@WEIR_TENANTS=$(TENANTS) $(private) go test ./test -count 1 -timeout 90m -run '^TestTenantsStayApart$$' -v $(ARGS)

# Not part of "make test", which would install Neutron and a database server.
.PHONY: test-neutron
test-neutron: deps-test deps-neutron build neutron-venv ## follow a cloud whose OVN a real Neutron manages, by the steps of the documents: a minute
	@WEIR_NEUTRON=$(CURDIR)/build/neutron-venv $(private) go test ./test -count 1 -timeout 20m -run '^TestBackendsInNeutron$$' -v $(ARGS)

.PHONY: test-kernels
test-kernels: deps-build deps-kernels ## run the packet tables on Debian's 6.1 and 6.12 kernels (qemu)
	@go run ./test/kernels $(ARGS)

# The version that is upgraded from, and back to: the last release before this commit.
FROM ?= $(shell git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null)

.PHONY: test-upgrade
test-upgrade: deps-test build ## upgrade under load from the last release, or from a commit, to this version, and back, many times: FROM=COMMIT
	@WEIR_UPGRADE_FROM=$(or $(FROM),$(error there is no release yet to upgrade from: FROM=COMMIT names a commit)) $(private) go test ./test -count 1 -timeout 20m -run '^TestUpgradeLosesNothing$$' -v $(ARGS)

# The devices that a host may have and this one's kernel may lack: bonds, VLANs, VRFs, bridges and
# tunnels. Emulation takes some minutes, so it is not part of "make test".
.PHONY: test-guest
test-guest: deps-test deps-kernels ## run the lab tests of devices in a guest with Debian's 6.12 kernel and this host's files (qemu)
	@go run ./test/kernels -host -kernels 6.12 -packages ./test -run '^TestDevices' -timeout 60m $(ARGS)

# What takes minutes to build stays in the user's cache.
cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weir

# NICs that qemu emulates: one that leads frames to queues by rules, and some that do not. Its qemu and
# kernels are Debian 13's, 450 MB that are fetched once.
.PHONY: test-nic
test-nic: deps-build deps-nic ## have emulated NICs with real drivers steer flows by rules, or say why not (qemu): a quarter of a minute, once fetched
	@go run ./test/kernels -kernels gem,pc -packages ./test/nic -run gem=^TestGEM -run pc=^TestPC -dir $(cache)/nic $(ARGS)

.PHONY: test-tune
test-tune: deps-build deps-kernels ## tune network cards that qemu has, on two NUMA nodes, in a guest with Debian's 6.12 kernel: a minute
	@go run ./test/kernels -nics -kernels 6.12 -packages ./internal/tune -run '^TestNICs' $(ARGS)

# KERNEL=6.12 does it in a guest, which takes half an hour.
KERNEL ?= own

releasebin := $(cache)/release

# Two versions of the package, as a release has it, with the same program.
packaged := build/systemd

.PHONY: test-systemd
test-systemd: deps-test deps-kernels build $(releasebin)/nfpm ## try the package's units under a systemd of their own: started, hung, upgraded under load, rebooted, purged: KERNEL=6.12 (qemu)
	@mkdir -p $(packaged)
	@.ci/licenses >$(packaged)/licenses
	@for version in 1.0.0 2.0.0; do \
		.ci/package $(releasebin)/nfpm deb bin/weir bin/weir $(packaged)/licenses "$$(go env GOARCH)" $$version $(packaged)/weir-$$version.deb; \
	done
	@go run ./test/kernels -host -systemd -kernels $(KERNEL) -packages ./test -run '^TestSystemd$$' -timeout 60m $(ARGS)

# What a change that keeps behavior keeps, too. With BASE it is compared with that of a commit.
.PHONY: frozen
frozen: deps-build ## write what users and other versions rely on to build/frozen, or compare it with a commit's: BASE=COMMIT
	@go run ./test/frozen $(if $(filter command line environment,$(origin BASE)),-base $(BASE))

# How many instructions one packet takes, of this version and of the commit BASE: counted by an
# emulator, so the numbers are the same each time. The older weir is built here, because a compiler
# takes long in the guest.
BASE ?= HEAD
.PHONY: instructions
instructions: deps-bench deps-kernels build ## count the instructions that a packet takes, beside those of a commit (qemu): BASE=COMMIT
	@go build -trimpath -buildvcs=false -o bin/bench ./bench >&2
	@bin/bench run versions --smoke --base $(BASE) > /dev/null
	@go run ./test/kernels -host -kernels 6.12 -instructions -timeout 20m -command "bin/bench run versions --smoke --base $(BASE)"

# What of Kubernetes weir is tried with. It is not part of "make test".
kubernetes := v1.36.3
kubebin := $(cache)/kubernetes-$(kubernetes)

$(kubebin)/%: kube/test/apiserver/go.mod
	@mkdir -p $(@D)
	@$(outside) build -C kube/test/apiserver -trimpath -buildvcs=false -o $@ \
		-ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(kubernetes)' k8s.io/kubernetes/cmd/$* >&2

$(kubebin)/helm: kube/test/helm/go.mod
	@mkdir -p $(@D)
	@$(outside) build -C kube/test/helm -trimpath -buildvcs=false -ldflags '-s -w' -o $@ helm.sh/helm/v4/cmd/helm >&2

.PHONY: test-kubernetes
test-kubernetes: deps-build deps-kubernetes $(kubebin)/kube-apiserver $(kubebin)/kube-controller-manager $(kubebin)/kube-proxy $(kubebin)/helm ## run the tests with a real Kubernetes API server, which is built once: some minutes
	@WEIR_KUBE_APISERVER=$(kubebin)/kube-apiserver WEIR_KUBE_CONTROLLER_MANAGER=$(kubebin)/kube-controller-manager WEIR_KUBE_PROXY=$(kubebin)/kube-proxy WEIR_HELM=$(kubebin)/helm \
		$(private) go test -timeout 30m -count 1 $(ARGS) ./kube/test

gatewaybin := $(cache)/gateway-api

.PHONY: gateway-conformance
gateway-conformance: deps-build ## build Gateway API's own tests, and the programs that stand for their images
	@$(outside) build -C kube/test/conformance -trimpath -buildvcs=false -o $(gatewaybin)/echo sigs.k8s.io/gateway-api/conformance/echo-basic >&2
	@$(outside) build -C kube/test/conformance -trimpath -buildvcs=false -o $(gatewaybin)/dns ./dns >&2
	@$(outside) test -C kube/test/conformance -c -trimpath -o $(gatewaybin)/suite . >&2

.PHONY: test-gateway-conformance
test-gateway-conformance: deps-kubernetes gateway-conformance $(kubebin)/kube-apiserver $(kubebin)/kube-controller-manager $(kubebin)/kube-proxy $(kubebin)/helm ## run Gateway API's own tests of TCPRoutes and UDPRoutes: ARGS=-update writes docs/results/gateway-api-conformance.yaml
	@WEIR_KUBE_APISERVER=$(kubebin)/kube-apiserver WEIR_KUBE_CONTROLLER_MANAGER=$(kubebin)/kube-controller-manager WEIR_KUBE_PROXY=$(kubebin)/kube-proxy WEIR_HELM=$(kubebin)/helm \
		WEIR_GATEWAY_CONFORMANCE=$(gatewaybin) $(private) go test -timeout 40m -count 1 -run Conformance ./kube/test $(ARGS)

.PHONY: demo
demo: deps-demo build-demo ## real traffic through every mode, in network namespaces: ARGS="--duration 10s --json"
	@.ci/deps frr || echo "without FRR the demo sets the router's routes by hand, and loses no director" >&2
	@bin/weir-demo $(ARGS)

.PHONY: chaos
chaos: deps-chaos build ## count the connections that break while everything changes: ARGS="--seeds 1-10 --json"
	@go build -trimpath -buildvcs=false -o bin/chaos ./test/chaos >&2
	@$(private) bin/chaos $(ARGS)

# The scenarios of make bench, all of them when empty: make bench SCENARIO="flows syn". One
# takes hours, and runs alone: make bench SCENARIO=soak ARGS="--duration 2h --every 60s". One runs
# a control plane of Kubernetes, which takes minutes to build, and only where it is named: kubernetes
SCENARIO ?=

ifneq ($(filter kubernetes,$(SCENARIO)),)
bench: bench-kubernetes
endif

.PHONY: bench-kubernetes
bench-kubernetes: deps-build deps-kubernetes build-kube $(kubebin)/kube-apiserver $(kubebin)/kube-controller-manager ## build what the scenario kubernetes of make bench needs, some minutes once
	@go build -trimpath -buildvcs=false -o bin/reactions ./kube/test/reactions >&2

.PHONY: bench
bench: deps-bench build ## measure weir beside its alternatives, a quarter of an hour: SCENARIO=flows ARGS="--json"
	@go build -trimpath -buildvcs=false -o bin/bench ./bench >&2
	@WEIR_KUBE_APISERVER=$(kubebin)/kube-apiserver WEIR_KUBE_CONTROLLER_MANAGER=$(kubebin)/kube-controller-manager \
		$(private) bin/bench run $(SCENARIO) $(ARGS)

.PHONY: simulate
simulate: deps-build ## simulate policies and large sites, some minutes: ARGS="--docs" writes docs/results/policies.md
	@go build -trimpath -buildvcs=false -o bin/bench ./bench >&2
	@bin/bench simulate $(ARGS)

.PHONY: bench-go
bench-go: deps-build ## run the Go benchmarks: ARGS="-count 5"
	@$(private) go test -run '^$$' -bench . -benchmem $(ARGS) ./internal/maglev ./internal/datapath ./bench/sim

.PHONY: lint
lint: format staticcheck ## check format, vet, static analysis and script syntax

.PHONY: format
format: deps-build deps-lint ## the same without static analysis, which takes longest
	@unformatted=$$(git ls-files -z '*.go' | xargs -0 gofmt -l); \
		test -z "$$unformatted" || { echo "not gofmt's format: $$unformatted" >&2; exit 1; }
	@go vet work
	@git ls-files "*.c" "*.h" | xargs clang-format-19 --dry-run -Werror
	@for script in .ci/*; do bash -n "$$script"; done

# Packages whose tests need neither root nor a lab, and take no more than seconds.
checked := . ./lab/packet ./lab/twin \
	$(addprefix ./internal/,config engine explain forecast history loads logs maglev metrics model problems turns) \
	$(addprefix ./kube/,controller follow gateway group pool translate v1alpha1)

.PHONY: check
check: format ## what CI runs in seconds: format, vet, and the tests that need neither root nor a lab
	@go test $(checked)

.PHONY: staticcheck
staticcheck: deps-build ## static analysis alone
	@go tool staticcheck work

.PHONY: image
image: build build-kube deps-image ## make build/weir.oci.tar and build/weir-kube.oci.tar, container images of these programs alone
	@.ci/image weir Containerfile build/weir.oci.tar "$$(go env GOARCH)=bin/weir"
	@.ci/image weir-kube kube/Containerfile build/weir-kube.oci.tar "$$(go env GOARCH)=bin/weir-kube"

.PHONY: install
install: build ## install bin/weir with units, manual pages and completions: PREFIX=/usr DESTDIR=/tmp/root
	@.ci/install bin/weir bin/weir "$(PREFIX)" "$(DESTDIR)"

.PHONY: uninstall
uninstall: ## remove what "make install" installs, with the same PREFIX and DESTDIR
	@.ci/install --remove "$(PREFIX)" "$(DESTDIR)"

# Tools that only a release needs are a module of their own, for the same reason as Kubernetes'.
$(releasebin)/nfpm $(releasebin)/cyclonedx-gomod: release/go.mod
	@mkdir -p $(@D)
	@$(outside) build -C release -trimpath -buildvcs=false -ldflags '-s -w' -o $(@D)/ \
		github.com/goreleaser/nfpm/v2/cmd/nfpm github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod >&2

release-tools := $(releasebin)/nfpm $(releasebin)/cyclonedx-gomod $(kubebin)/helm

.PHONY: release
release: deps-build deps-release $(release-tools) ## make what people install in dist/, the same bytes each time: SIGN_KEY=FILE signs it
	@.ci/release $(releasebin) $(kubebin)/helm dist

# It makes the release twice, the second time without what the first one has compiled.
.PHONY: test-release
test-release: deps-build deps-release deps-test-release $(release-tools) ## make the release of HEAD twice, compare the bytes, and try what is in it: some minutes
	@WEIR_RELEASE_TOOLS=$(releasebin) WEIR_HELM=$(kubebin)/helm go test ./test/release -count 1 -timeout 60m $(ARGS)

# Not part of "make test", which would install a container runtime.
.PHONY: test-image
test-image: image deps-podman ## run the images under podman with no capabilities but those that the chart gives
	@WEIR_IMAGE=$(CURDIR)/build/weir.oci.tar WEIR_KUBE_IMAGE=$(CURDIR)/build/weir-kube.oci.tar $(private) go test ./test/image -count 1 $(ARGS)

# Only who changes the dashboard needs it: what it makes is committed, and part of bin/weir.
.PHONY: web
web: web/node_modules/.package-lock.json ## build the dashboard of web/ into web/dist, which is committed
	@npm --prefix web run --silent build >&2

web/node_modules/.package-lock.json: web/package-lock.json
	@.ci/deps-node
	@npm --prefix web ci --silent --ignore-scripts --no-audit --no-fund >&2

.PHONY: test-web
test-web: deps-web build-demo web ## try the dashboard of a running demo in Chromium: SCREENSHOTS=/DIR takes pictures, too
	@cd web && WEIR=../bin/weir $(private) node --test test/dashboard.test.js
	@cd web && WEIR=../bin/weir unshare --net -- $(private) node --test test/large.test.js

.PHONY: clean
clean: ## remove what was built
	@rm -rf bin build dist web/node_modules
