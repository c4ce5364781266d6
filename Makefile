# Run "make help" for the list of targets.

VERSION ?= v0.1.0
REGISTRY ?= ghcr.io/capi-talos
GOLANGCI_LINT_VERSION := v2.15.0
GOTESTSUM_VERSION := v1.13.0

# The list of providers is that of clusterctl-settings.json: <folder>:<name>, where the
# name is that in component files and images.
PROVIDER_NAMES := $(shell awk -F'"' '/"providers"/ {list = 1} \
	list && /"componentsFile"/ {name = $$4; sub(/-components\.yaml$$/, "", name)} \
	list && /"configFolder"/ {split($$4, path, "/"); print path[2] ":" name}' clusterctl-settings.json)
PROVIDERS := $(foreach provider,$(PROVIDER_NAMES),$(firstword $(subst :, ,$(provider))))
$(if $(PROVIDERS),,$(error clusterctl-settings.json lists no providers))
name_of = $(patsubst $(1):%,%,$(filter $(1):%,$(PROVIDER_NAMES)))
# The modules of the repository. The parts of the test bed below
# test/stack/parts/modules pin what is built from elsewhere; they are no code of
# ours.
MODULES := . $(patsubst %/go.mod,%,$(wildcard test/*/go.mod test/sim/*/go.mod test/suites/*/go.mod test/suites/machinery/*/go.mod))
# The programs of etcd that the backup provider runs: a module for each release of etcd.
ETCD_MODULES := $(wildcard backup/etcd/*)
TOOL := go -C test/tools tool
OUT := out
ROOT := $(CURDIR)
# Says what is being done where a step is silent for long.
PATIENTLY := $(ROOT)/test/tools/patiently/patiently.sh
STACK := $(ROOT)/$(OUT)/tools/stack
# All code is vetted by make verify, once.
GO_TEST := go test -vet=off $(if $(RACE),-race)
# Suites build the programs that they start while they run. Go does not know about
# these when it looks for a result that it has already.
GO_SUITE := $(GO_TEST) -count=1
# A long suite prints at its end once more what its failed tests have printed.
GO_SUITE_SUMMARY := go run gotest.tools/gotestsum@$(GOTESTSUM_VERSION) --format standard-verbose -- -vet=off $(if $(RACE),-race) -count=1
# The suite of many that are idle, which test-scale and bench-scale run in its folder.
CROWD := $(PATIENTLY) "measuring idle hosts and clusters" $(GO_SUITE) -v -timeout 2h ./crowd -args -long $(if $(HOSTS),-hosts=$(HOSTS)) $(if $(IDLE_CLUSTERS),-idle-clusters=$(IDLE_CLUSTERS))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-27s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove what was built here; the cache of built parts stays.
	rm -rf $(OUT)

##@ Generate

.PHONY: generate
generate: $(PROVIDERS:%=generate-%) ## Generate deep copies, kinds, roles, webhook configurations and the API reference.

.PHONY: $(PROVIDERS:%=generate-%)
$(PROVIDERS:%=generate-%): generate-%:
	$(TOOL) controller-gen object paths=$(ROOT)/$*/api/...
	$(TOOL) controller-gen crd:crdVersions=v1 paths=$(ROOT)/$*/api/... output:crd:artifacts:config=$(ROOT)/config/$*/crd/bases
	$(TOOL) controller-gen rbac:roleName=capt-$(call name_of,$*)-manager-role paths=$(ROOT)/$*/internal/... paths=$(ROOT)/cmd/$* output:rbac:artifacts:config=$(ROOT)/config/$*/rbac
	$(TOOL) controller-gen webhook paths=$(ROOT)/$*/internal/webhooks/... output:webhook:artifacts:config=$(ROOT)/config/$*/webhook
	@mkdir -p $(ROOT)/docs/api
	$(TOOL) crd-ref-docs --log-level ERROR --config apireference/config.yaml --templates-dir apireference \
		--source-path $(ROOT)/$*/api --renderer markdown --output-mode group --output-path $(ROOT)/docs/api

##@ Verify

.PHONY: verify
verify: verify-format verify-generate verify-modules verify-documents ## Check that generated files, formatting, modules, versions and links are right, and vet all code.
	@set -e; for module in $(MODULES); do echo "vet $$module"; (cd $$module && $(PATIENTLY) "vetting $$module" go vet ./...); done

.PHONY: verify-format
verify-format:
	@test -z "$$(gofmt -l .)" || { echo "not formatted, run gofmt -w:"; gofmt -l .; exit 1; }

# Generates into a copy, so that what is not committed yet stays as it is.
.PHONY: verify-generate
verify-generate:
	@rm -rf $(OUT)/verify && mkdir -p $(OUT)/verify && tar -cf - --exclude=./$(OUT) --exclude=./.git . | tar -xf - -C $(OUT)/verify
	@rm -f $(OUT)/verify/config/*/crd/bases/*.yaml $(OUT)/verify/docs/api/*.md
	@$(PATIENTLY) "generating" $(MAKE) --no-print-directory -s -C $(OUT)/verify generate
	@for provider in $(PROVIDERS); do \
		diff -ru config/$$provider $(OUT)/verify/config/$$provider && diff -ru $$provider/api $(OUT)/verify/$$provider/api \
		|| { echo "generated files are out of date, run make generate"; exit 1; }; done
	@diff -ru docs/api $(OUT)/verify/docs/api || { echo "the API reference is out of date, run make generate"; exit 1; }
	@rm -rf $(OUT)/verify

.PHONY: verify-modules
verify-modules:
	@set -e; for module in $(MODULES) $(ETCD_MODULES); do echo "mod tidy -diff $$module"; (cd $$module && go mod tidy -diff) \
		|| { echo "$$module/go.mod is not tidy, run go mod tidy there"; exit 1; }; done

.PHONY: verify-documents
verify-documents:
	@$(PATIENTLY) "testing pages and manifests" go test ./config/ ./docs/ ./templates/
	@$(PATIENTLY) "testing alerts" go -C test/suites/alerts test -count=1 ./...

##@ Lint

.PHONY: lint
lint: ## Run golangci-lint on all modules.
	@failed=; for module in $(MODULES); do echo "lint $$module"; \
		(cd $$module && $(PATIENTLY) "linting $$module" go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION) run --config $(ROOT)/.golangci.yml ./...) \
		|| failed="$$failed $$module"; done; \
	test -z "$$failed" || { echo "findings in:$$failed"; exit 1; }
	@cd test/tools && $(PATIENTLY) "planting imports that the linter has to refuse" go test -count=1 ./importrules -args -golangci-lint=$(GOLANGCI_LINT_VERSION)

##@ Test

# The first prerequisite tells people what they are in for.
.PHONY: test
test: announce-test local-repository ## Run the tests of rungs 1 and 2. RACE=1 looks for data races.
	@$(MAKE) --no-print-directory -j$(if $(RACE),2,3) $(MODULE_TESTS) $(INTEGRATION_TESTS)

# Many tests wait more than they compute: three modules or parts of rung 2 at a time keep
# two processors busy. With the race detector it is two: beside more, clusters come up too
# late.
MODULE_TESTS := $(addprefix test-module/,$(filter-out test/suites/integration,$(MODULES)))

# Tests, and the compiler and linker before them, are done sooner where Go collects garbage
# less often. Our managers in a management cluster do not see this.
$(MODULE_TESTS) test-integration-%: export GOGC ?= 200
# They share the processors: what takes milliseconds alone is given more than Gomega's second.
$(MODULE_TESTS): export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT ?= 30s

.PHONY: $(MODULE_TESTS)
$(MODULE_TESTS): test-module/%:
	cd $* && $(PATIENTLY) "testing $*" $(if $(filter test/%,$*),$(GO_SUITE),$(GO_TEST)) -timeout 40m ./...

# The parts of rung 2, the longest first.
INTEGRATION_TESTS := $(addprefix test-integration-,rest upstream restarts containers faults)

.PHONY: announce-test
announce-test:
	@echo 'make test runs the unit tests, and suites on a real kube-apiserver, etcd and Cluster API.'
	@echo 'Everything listens on loopback addresses only, and nothing is installed.'
	@echo 'The first time it builds these programs from source into ~/.cache/capi-talos: it takes'
	@echo 'about an hour on two cores, later less than half an hour. To undo that:'
	@echo '    rm -rf ~/.cache/capi-talos; make clean; go clean -cache -modcache'

# Tests that restart the managers, and those of machines in Pods, have management
# clusters of their own, so that the others need not wait for them. So have the checks of
# Cluster API's own framework: they bound how long managers may take that have nothing
# else to do.
RESTARTS := ^TestManagers
UPSTREAM := ^TestUpstreamsFramework$$

.PHONY: test-integration-restarts
test-integration-restarts:
	cd test/suites/integration && RACE=$(RACE) $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE_SUMMARY) -timeout 40m -run '$(RESTARTS)' .

.PHONY: test-integration-rest
test-integration-rest:
	cd test/suites/integration && RACE=$(RACE) $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE_SUMMARY) -timeout 40m -skip '$(RESTARTS)|$(UPSTREAM)' .

.PHONY: test-integration-upstream
test-integration-upstream:
	cd test/suites/integration && RACE=$(RACE) $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE_SUMMARY) -timeout 40m -run '$(UPSTREAM)' .

# Machines in Pods need a management cluster that runs Pods. Most of the time they
# are waited for.
.PHONY: test-integration-containers
test-integration-containers: ## Run the part of the tests that is about machines in Pods.
	cd test/suites/integration && RACE=$(RACE) $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE_SUMMARY) -timeout 40m ./containers

.PHONY: test-integration-faults
test-integration-faults: ## Run the part of the tests that has each fault of the fault matrix once.
	cd test/suites/integration && RACE=$(RACE) $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE_SUMMARY) -timeout 40m ./faults -args -cells=11

.PHONY: test-scale
test-scale: local-repository ## Measure a cluster of 3 + 20 machines, and what the managers do and have when there is nothing to do. CLUSTERS=50 REST=1h leaves so many alone for so long; HOSTS=1000, IDLE_CLUSTERS=200 idle ones.
	cd test/suites/integration && $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE) -v -p 1 -timeout 60m ./idle -args -long
	cd test/suites/integration && $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE) -v -p 1 -timeout 4h ./scale -args -long $(if $(CLUSTERS),-clusters=$(CLUSTERS)) $(if $(REST),-rest=$(REST))
	cd test/suites/integration && $(CROWD)

# The suite is in one file, which an older revision can run, too. Nothing of that revision
# is changed. Up to 3ce765c the suites and simulators were in test/ itself.
.PHONY: bench-scale
bench-scale: local-repository ## Measure 1000 idle hosts and 200 idle clusters (HOSTS=1000, IDLE_CLUSTERS=200) with the managers of BASE=<git revision>, then with those here.
	@test -n "$(BASE)" || { echo 'name the older revision: make bench-scale BASE=<git revision>'; exit 1; }
	rm -rf $(OUT)/base && mkdir -p $(OUT)/base
	git archive $(BASE) | tar -xf - -C $(OUT)/base
	test -d $(OUT)/base/test/suites || ln -s . $(OUT)/base/test/suites
	mkdir -p $(OUT)/base/test/suites/integration/crowd
	cp test/suites/integration/crowd/*.go $(OUT)/base/test/suites/integration/crowd/
	test ! -L $(OUT)/base/test/suites || sed -i -E 's#/test/(suites|sim)/#/test/#' $(OUT)/base/test/integration/crowd/*.go
	$(MAKE) --no-print-directory -C $(OUT)/base local-repository
	-cd -P $(OUT)/base/test/suites/integration && $(CROWD)
	cd test/suites/integration && $(CROWD)
	rm -rf $(OUT)/base

.PHONY: test-talos
test-talos: local-repository $(if $(SMOKE)$(ONLY),,test-histories) ## Run test-histories, and the suite on real Talos nodes in containers where there can be Docker. SMOKE=1 takes one node only; STRICT=1 fails where there can be no Docker; ONLY=<label filter> takes some specs, and no histories; TALOS=previous has the nodes run the release before; BUSY=20.
	cd test/stack && $(PATIENTLY) "testing test/stack" $(GO_SUITE) -v -timeout 3h ./talos -args -real -ginkgo.v -ginkgo.timeout=2h50m $(if $(SMOKE),-ginkgo.label-filter=smoke) $(if $(ONLY),-ginkgo.label-filter='$(ONLY)') $(if $(BUSY),-busy=$(BUSY)) $(if $(RECORD),-record) $(if $(TALOS),-previous-talos) $(if $(STRICT),-strict)

.PHONY: test-metal
test-metal: local-repository ## Boot real Talos on virtual machines with disks: over the network, installed, and wiped again. They are emulated where the processor cannot run them. SMOKE=1 boots one over the network, and has one run from its disk; ONLY=<regular expression> takes some tests; RECORD=1 keeps what a machine tells; STRICT=1 fails where there can be none. Consoles and logs stay in out/metal.
	@mkdir -p $(OUT)/metal
	cd test/stack && $(PATIENTLY) "testing test/stack" $(GO_SUITE) -v -timeout 10h -artifacts -outputdir=$(ROOT)/$(OUT)/metal $(if $(SMOKE),-run 'TestAMachineBootsOverTheNetwork|TestAMachineRunsFromItsDisk') $(if $(ONLY),-run '$(ONLY)') ./vms -args -vms $(if $(RECORD),-record) $(if $(STRICT),-strict)

.PHONY: parts-vm
parts-vm: stack ## Build what virtual machines are made of, and say how long each part took.
	cd test/stack && $(STACK) parts vm-debian talos-boot talos-installer-image talos-installer-image-broken talos-boot-previous talos-installer-image-previous talos-nocloud-image talos-node-images talos-node-images-previous talos-images-previous registry

# The last revision whose conditions had their former names. Providers are upgraded
# from it; empty leaves that out.
UPGRADE_FROM ?= 4be757ad2e0c65d76b96a1dffc4122b9dd4c7d27

.PHONY: test-e2e
test-e2e: local-repository ## Run the suite in a cluster: the providers in kind, real Talos nodes in Docker and in Pods. ONLY=<label filter>, UPGRADE_FROM=<git revision of an older release>.
	cd test/suites/e2e && $(PATIENTLY) "testing test/suites/e2e" $(GO_SUITE) -v -timeout 8h . -args -kind -ginkgo.v -ginkgo.timeout=7h30m $(if $(ONLY),-ginkgo.label-filter='$(ONLY)') $(if $(UPGRADE_FROM),-upgrade-from=$(UPGRADE_FROM)) $(if $(STRICT),-strict)

.PHONY: test-histories
test-histories: ## Play 10000 histories of the control plane's decision, and 500 of etcd on the model and on real etcd.
	$(PATIENTLY) "playing histories" $(GO_SUITE) ./controlplane/internal/plan -args -histories=10000
	cd test/sim/etcdhistory && $(PATIENTLY) "testing test/sim/etcdhistory" $(GO_SUITE) -v -timeout 40m . -args -histories=500

.PHONY: test-faults
test-faults: local-repository ## Run the fault matrix.
	cd test/suites/integration && $(PATIENTLY) "testing test/suites/integration" $(GO_SUITE) -v -timeout 60m ./faults -args -cells=154

.PHONY: test-stores
test-stores: ## Test encryption by the server of a store, and servers that are full, on MinIO, which is built first, and on a small file system, which needs root.
	$(PATIENTLY) "testing stores" $(GO_SUITE) -v -run 'TestEncryptionByTheServer|TestAFullStore' ./backup/internal/store -args -servers

.PHONY: test-mutants
test-mutants: ## Change one place at a time of what decides about etcd, keys and disks, and count the changes that no test notices. SEED=1, COUNT=60; NAMED=1 plays those of test/tools/mutants/named.txt, ONLY=<part of file:line> all of a place.
	go -C test/tools run ./mutants -root $(ROOT) $(if $(NAMED),-named mutants/named.txt,-seed $(or $(SEED),1) -count $(or $(COUNT),60)) $(if $(ONLY),-only $(ONLY))

.PHONY: test-quick-start
test-quick-start: local-repository ## Type the commands of docs/quick-start.md, in Docker.
	cd test/stack && $(PATIENTLY) "testing test/stack" go test -v -count=1 -timeout 1h -run TestQuickStart ./quickstart -args -type-page

.PHONY: test-tilt
test-tilt: ## Have the real Tilt evaluate the Tiltfile, and make a new manager of a saved file. Tilt is built with a C compiler.
	cd test/stack && $(PATIENTLY) "testing test/stack" go test -v -count=1 -timeout 30m ./dev -args -tilt

.PHONY: test-dev
test-dev: ## Go through the development loop of docs/development.md, in Docker, and say how long its steps take.
	cd test/stack && $(PATIENTLY) "testing test/stack" go test -v -count=1 -timeout 2h -run TestTheDailyLoop ./dev -args -loop

.PHONY: bench-main
bench-main: local-repository stack ## Measure the main job beside its floor, on real nodes where there can be Docker, and the managers. A goal that is missed is printed, and is no failure. FLEET=sim, ROUNDS=1.
	cd test/stack && $(STACK) bench-main

# A process each, so that the memory is that of one measurement.
ADDONS_BENCH = $(PATIENTLY) "measuring add-ons" $(GO_SUITE) -v -timeout 2h ./addons/setup -run $(1) -args -long $(if $(ADDONS),-addons=$(ADDONS)) $(if $(CLUSTERS),-clusters=$(CLUSTERS)) $(if $(IDLE),-idle=$(IDLE))

.PHONY: bench-addons
bench-addons: ## Measure 50 add-ons on 40 clusters with a fake Helm, then 10 on 8 API servers of which one does not answer, and both when there is nothing to do; then do bench-addons-caaph. ADDONS=50, CLUSTERS=40, IDLE=10m.
	$(call ADDONS_BENCH,TestManyAddonsOnManyClusters)
	$(call ADDONS_BENCH,TestAClusterThatDoesNotAnswerHoldsUpNobody)
	@$(MAKE) --no-print-directory bench-addons-caaph

.PHONY: bench-addons-caaph
bench-addons-caaph: ## Measure one add-on on 20 API servers beside CAAPH, in turns. CLUSTERS=20, ROUNDS=3, IDLE=2m.
	cd test/suites/addons && $(PATIENTLY) "measuring add-ons beside CAAPH" $(GO_SUITE) -v -timeout 4h -run TestBesideCAAPH . -args -caaph $(if $(CLUSTERS),-clusters=$(CLUSTERS)) $(if $(ROUNDS),-rounds=$(ROUNDS)) $(if $(IDLE),-idle=$(IDLE))

.PHONY: bench-backup
bench-backup: local-repository ## Measure backups of 16 MiB, 256 MiB and 2 GiB of a real etcd, beside a copy of the same bytes to the same S3 server. ONLY=<name of a set>.
	cd test/suites/integration && $(PATIENTLY) "measuring backups" $(GO_SUITE) -v -timeout 2h ./backups -args -long $(if $(ONLY),-only='$(ONLY)')

##@ Develop

# The first prerequisite tells people what they are in for.
.PHONY: demo
demo: announce-demo local-repository stack ## Build a Kubernetes cluster in Pods, scale it, roll it and take it away. MODE=metal: out of Talos machines. FLEET=sim, KEEP=1.
	cd test/stack && $(STACK) demo

.PHONY: dev-up
dev-up: local-repository stack ## Raise a management cluster in kind with everything installed, which stays until dev-down. Needs root.
	cd test/stack && $(STACK) dev-up

.PHONY: dev-down
dev-down: stack ## Take down what dev-up has raised.
	cd test/stack && $(STACK) dev-down

.PHONY: tilt-up
tilt-up: stack ## Put every saved file into the cluster of dev-up. TILT=tilt takes your own Tilt, which has a web interface.
	cd test/stack && $(STACK) tilt up $(if $(TILT),,--legacy)

.PHONY: tilt-ci
tilt-ci: stack ## Build all managers and put them into the cluster of dev-up, once.
	cd test/stack && $(STACK) tilt ci

# The program that raises management clusters and machines.
.PHONY: stack
stack:
	@$(PATIENTLY) "compiling the test stack" go -C test/stack build -buildvcs=false -ldflags "-s -w" -o $(STACK) ./cmd/stack

.PHONY: announce-demo
announce-demo:
	@echo 'make demo creates a Kubernetes cluster of Talos machines on this machine, scales it,'
	@echo 'upgrades it, and deletes it again.'
	@echo 'The first time it builds all parts from source into ~/.cache/capi-talos: more than half'
	@echo 'an hour on two cores, 4 GiB, and more than that in the caches of Go. Later it takes about'
	@echo 'nine minutes. As root on Debian it installs Docker where there is none, and starts it.'
	@echo 'What it starts it takes away at the end, also when it is interrupted. To undo the rest:'
	@echo '    rm -rf ~/.cache/capi-talos; make clean; go clean -cache -modcache'

##@ Build and release

.PHONY: build
build: ## Build the managers, and the programs of etcd for backups, into out/bin.
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o $(OUT)/bin/ ./cmd/...
	@set -e; for module in $(ETCD_MODULES); do release=$${module##*/}; for program in etcdutl server; do \
		name=$$(echo $$program | sed 's/server/etcd/')-$$release; echo "build $$name"; \
		CGO_ENABLED=0 go -C $$module build -trimpath -ldflags '-s -w' -o $(ROOT)/$(OUT)/bin/etcd/$$name go.etcd.io/etcd/$$program/v3; done; done

.PHONY: images
images: $(PROVIDERS:%=image-%) ## Build the managers' images with Docker.

.PHONY: $(PROVIDERS:%=image-%)
$(PROVIDERS:%=image-%): image-%: build
	docker build --tag $(REGISTRY)/$(call name_of,$*)-manager:$(VERSION) --file cmd/$*/Dockerfile $(OUT)/bin

.PHONY: release
release: $(PROVIDERS:%=release-%) ## Write component files, metadata and templates into out/release.
	cp metadata.yaml templates/*.yaml $(OUT)/release/

.PHONY: release-folder
release-folder:
	@rm -rf $(OUT)/release && mkdir -p $(OUT)/release
	@$(PATIENTLY) "compiling kustomize" $(TOOL) kustomize version >/dev/null

.PHONY: $(PROVIDERS:%=release-%)
$(PROVIDERS:%=release-%): release-%: release-folder
	$(TOOL) kustomize build $(ROOT)/config/$*/default > $(OUT)/release/components.$*
	sed 's|ghcr.io/capi-talos/\(.*\)-manager:dev|$(REGISTRY)/\1-manager:$(VERSION)|' $(OUT)/release/components.$* > $(OUT)/release/$(call name_of,$*)-components.yaml
	@rm $(OUT)/release/components.$*

.PHONY: local-repository
local-repository: release ## Lay the release out as a local repository of clusterctl in out/repository.
	go -C test/tools run ./localrepository -settings $(ROOT)/clusterctl-settings.json -release $(ROOT)/$(OUT)/release -repository $(ROOT)/$(OUT)/repository -version $(VERSION)
