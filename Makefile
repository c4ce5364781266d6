# Run "make help" for the list of targets.

VERSION ?= v0.1.0
REGISTRY ?= ghcr.io/capi-talos
GOLANGCI_LINT_VERSION := v2.15.0

PROVIDERS := bootstrap controlplane infrastructure
MODULES := . $(patsubst %/go.mod,%,$(wildcard test/*/go.mod))
TOOL := go -C test/tools tool
OUT := out
ROOT := $(CURDIR)

# What the providers are called in component files and images.
NAME_bootstrap := bootstrap
NAME_controlplane := control-plane
NAME_infrastructure := infrastructure

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

##@ General

.PHONY: help
help: ## Show this list.
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*##/ {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove what was built here; the cache of built parts stays.
	rm -rf $(OUT)

##@ Generate and verify

.PHONY: generate
generate: $(PROVIDERS:%=generate-%) ## Generate deep copies, kinds, roles and webhook configurations.

.PHONY: $(PROVIDERS:%=generate-%)
$(PROVIDERS:%=generate-%): generate-%:
	$(TOOL) controller-gen object paths=$(ROOT)/$*/api/...
	$(TOOL) controller-gen crd:crdVersions=v1 paths=$(ROOT)/$*/api/... output:crd:artifacts:config=$(ROOT)/config/$*/crd/bases
	$(TOOL) controller-gen rbac:roleName=capt-$(NAME_$*)-manager-role paths=$(ROOT)/$*/internal/... paths=$(ROOT)/cmd/$* output:rbac:artifacts:config=$(ROOT)/config/$*/rbac
	$(TOOL) controller-gen webhook paths=$(ROOT)/$*/internal/webhooks/... output:webhook:artifacts:config=$(ROOT)/config/$*/webhook

.PHONY: verify
verify: verify-format verify-generate verify-modules ## Check that generated files, formatting and modules are up to date, and vet all code.
	@set -e; for module in $(filter-out test/tools,$(MODULES)); do echo "vet $$module"; (cd $$module && go vet ./...); done

.PHONY: verify-format
verify-format:
	@test -z "$$(gofmt -l .)" || { echo "not formatted, run gofmt -w:"; gofmt -l .; exit 1; }

.PHONY: verify-generate
verify-generate: ## Fail when a generated file is out of date.
	@rm -rf $(OUT)/verify && mkdir -p $(OUT)/verify && tar -cf - --exclude=./$(OUT) --exclude=./.git . | tar -xf - -C $(OUT)/verify
	@$(MAKE) --no-print-directory -s -C $(OUT)/verify generate
	@for provider in $(PROVIDERS); do \
		diff -ru config/$$provider $(OUT)/verify/config/$$provider && diff -ru $$provider/api $(OUT)/verify/$$provider/api \
		|| { echo "generated files are out of date, run make generate"; exit 1; }; done
	@rm -rf $(OUT)/verify

.PHONY: verify-modules
verify-modules:
	@set -e; for module in $(MODULES); do echo "mod tidy -diff $$module"; (cd $$module && go mod tidy -diff >/dev/null) \
		|| { echo "$$module/go.mod is not tidy, run go mod tidy there"; exit 1; }; done

.PHONY: lint
lint: ## Run golangci-lint on all modules.
	@set -e; for module in $(filter-out test/tools,$(MODULES)); do echo "lint $$module"; \
		(cd $$module && go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION) run --config $(ROOT)/.golangci.yml ./...); done

##@ Test

.PHONY: test
test: local-repository ## Run the tests of rungs 1 and 2. RACE=1 looks for data races.
	@set -e; for module in $(filter-out test/tools test/integration,$(MODULES)); do echo "test $$module"; (cd $$module && go test $(if $(RACE),-race) ./...); done
	@if [ -f test/integration/go.mod ]; then cd test/integration && RACE=$(RACE) go test $(if $(RACE),-race) -v -timeout 40m ./...; fi

.PHONY: demo
demo: local-repository ## Build a Kubernetes cluster out of Talos machines, scale it and give the machines back. FLEET=sim, KEEP=1.
	cd test/stack && go run ./cmd/stack demo

##@ Build and release

.PHONY: build
build: ## Build the managers into out/bin.
	CGO_ENABLED=0 go build -trimpath -o $(OUT)/bin/ ./cmd/...

.PHONY: release
release: $(PROVIDERS:%=release-%) ## Write component files, metadata and templates into out/release.
	cp metadata.yaml templates/*.yaml $(OUT)/release/

.PHONY: $(PROVIDERS:%=release-%)
$(PROVIDERS:%=release-%): release-%:
	@mkdir -p $(OUT)/release
	$(TOOL) kustomize build $(ROOT)/config/$*/default \
		| sed 's|ghcr.io/capi-talos/\(.*\)-manager:dev|$(REGISTRY)/\1-manager:$(VERSION)|' > $(OUT)/release/$(NAME_$*)-components.yaml

.PHONY: local-repository
local-repository: release ## Lay the release out as a repository of clusterctl in out/repository.
	@rm -rf $(OUT)/repository
	@set -e; for name in bootstrap control-plane infrastructure; do \
		folder=$(OUT)/repository/$$name-talos/$(VERSION); mkdir -p $$folder; \
		cp $(OUT)/release/$$name-components.yaml $(OUT)/release/metadata.yaml $$folder/; done
	@cp templates/*.yaml $(OUT)/repository/infrastructure-talos/$(VERSION)/
