.PHONY: verify test
verify: ## Check formatting and vet the code.
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...

test: ## Run the tests.
	go test $(if $(RACE),-race) ./...
