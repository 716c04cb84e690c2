# make test    everything that has a test, with the race detector; needs only Go
# make check   what CI runs: tests, models at full length, lint, generated code, docs
# make help    the rest

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

GO    ?= go
BIN   := bin
TOOLS := $(BIN)/tools
BUF   := $(TOOLS)/node_modules/.bin/buf
LINT  := $(TOOLS)/golangci-lint

BUF_VERSION := 1.75.0

.PHONY: help build test model fuzz bench check lint generate check-generated check-docs check-tidy clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 20

build: ## the binary, as bin/turnlane
	$(GO) build -o $(BIN)/turnlane ./cmd/turnlane

test: ## all tests, with the race detector
	$(GO) build -race ./...
	$(GO) test -race -p 1 -timeout 15m ./...

model: ## the feed's model at full length (TURNLANE_MODEL_STEPS, TURNLANE_MODEL_SEED)
	TURNLANE_MODEL_STEPS=$${TURNLANE_MODEL_STEPS:-1000000} $(GO) test -count=1 -run 'Model' ./feed/...

fuzz: ## each fuzz target for FUZZTIME (10s)
	@for t in $$(grep -rhoE '^func Fuzz[A-Za-z0-9]+' --include=*_test.go event | sed 's/func //'); do \
	  $(GO) test -run '^$$' -fuzz "^$$t$$" -fuzztime $${FUZZTIME:-10s} ./event; done

bench: ## every benchmark once
	$(GO) test -run '^$$' -bench . -benchtime 1x ./...

check: test model bench fuzz lint check-generated check-docs check-tidy ## what CI runs

lint: $(LINT) ## vet, golangci-lint, gofmt
	$(GO) vet ./...
	$(LINT) run ./...

generate: $(BUF) ## code from proto/
	$(BUF) generate

check-generated: $(BUF) ## proto/ is clean and its code is up to date
	$(BUF) lint
	rm -rf $(BIN)/generated && mkdir -p $(BIN)/generated && $(BUF) generate -o $(BIN)/generated
	@diff -r -x '*.proto' proto $(BIN)/generated/proto || { echo 'proto/: generated code is out of date: run make generate'; exit 1; }

check-docs: ## links, names of tests and commands in the docs
	$(GO) test -count=1 ./internal/archtest/

check-tidy: ## go.mod is tidy
	$(GO) mod tidy -diff

$(BUF):
	@command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq npm; }
	npm install --silent --no-audit --no-fund --no-package-lock --prefix $(TOOLS) -E @bufbuild/buf@$(BUF_VERSION)

$(LINT): tools/golangci.mod
	$(GO) build -modfile=tools/golangci.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

clean: ## remove what make built
	rm -rf $(BIN)
