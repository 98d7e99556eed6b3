# `make` alone prints the targets.

GO        ?= go
TOOL      := $(GO) tool -modfile=.ci/tools.mod
FUZZTIME  ?= 30s
DURATION  ?= 60s
VULNDB    ?= https://vuln.go.dev
CONTRIB   := $(patsubst %/go.mod,%,$(shell find redlock/contrib -name go.mod | sort))
EXAMPLES  := $(patsubst %/go.mod,%,$(sort $(wildcard redlock/examples/*/go.mod)))
PLATFORMS := linux/amd64 linux/arm64 linux/386 darwin/arm64 windows/amd64 freebsd/amd64

# The race detector lets each program sleep for a second before it exits, and tests run many programs. Without the sleep
# it still reports races, and the exit status still says that there were some.
GORACE ?= atexit_sleep_ms=0

.PHONY: help demo tools test histories contrib contrib-tools portable cover fuzz chaos servers mutants scale bench bench-quick bench-compare lint vuln build release dist user need-redis need-cc
.NOTPARALLEL:
.SUFFIXES:

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## take locks on five masters while they fail
	@$(GO) run -tags redburst_embedded ./redlock/cmd/redlock demo

# A redis-server that the package manager has started is stopped again: the
# tests start their own.
tools: ## install what the tests need, if it is missing: redis-server and a C compiler
	@set -e; \
	redis= cc= root=; \
	command -v redis-server >/dev/null || command -v valkey-server >/dev/null || redis=missing; \
	command -v $$($(GO) env CC) >/dev/null || cc=missing; \
	[ -n "$$redis$$cc" ] || { echo "Nothing is missing."; exit 0; }; \
	as_root() { if [ "$$(id -u)" = 0 ]; then "$$@"; else sudo "$$@"; fi; }; \
	if [ "$$(id -u)" = 0 ] || command -v sudo >/dev/null; then root=yes; fi; \
	if [ -n "$$root" ] && command -v apt-get >/dev/null; then \
		as_root apt-get update; \
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
			$${redis:+redis-server} $${cc:+gcc libc6-dev}; \
		[ -z "$$redis" ] || as_root service redis-server stop >/dev/null 2>&1 || :; \
	elif [ -n "$$root" ] && command -v dnf >/dev/null; then \
		[ -z "$$cc" ] || as_root dnf install -y gcc; \
		[ -z "$$redis" ] || as_root dnf install -y redis || as_root dnf install -y valkey; \
	elif [ -z "$$cc" ] && command -v brew >/dev/null; then \
		brew install redis; \
	else \
		echo "The tests need a redis-server and, for go test -race, a C compiler." >&2; \
		[ -z "$$redis" ] || echo "Install redis (also named redis-server, or valkey) with your package manager." >&2; \
		[ -z "$$cc" ] || echo "Install gcc or clang with your package manager." >&2; \
		exit 1; \
	fi

# Bytes, votes and values have no goroutines, so they need no race detector. It allocates, and slows down the models and what
# compares scripts with theirs: such tests are left out with it, and run without. Others do less with it.
# The tests of the locks have the machine for themselves: many are about what is late.
test: need-redis need-cc ## run all tests
	CI=true GORACE='$(GORACE)' $(GO) test -race -shuffle=on -timeout 30m ./redlock
	CI=true GORACE='$(GORACE)' $(GO) test -race -shuffle=on -timeout 30m $$($(GO) list ./... | grep -vE '/redburst/(fuzz|redlock|redlock/internal/quorum|resp(/.*)?)$$')
	CI=true $(GO) test -shuffle=on ./fuzz ./resp/... ./redlock/internal/quorum
	CI=true $(GO) test -short -run 'Alloc|Model|Scripts|Combination|HasItsTypes' ./conn ./mux ./redlock ./redlock/flight ./redlock/redlocktest/mutants
	@set -e; for module in $(EXAMPLES); do (cd $$module && CI=true $(GO) test ./...); done

# The normal tests look at some of what is random, and make test does less of it with the race detector. A history that
# fails says how to see it again.
WHOLE := SimulatedHistories|TestScenarios|Scripts|SeveralOnOneMutex|SecondIsTheAuthority|NobodyStarves|Failovers
histories: need-redis ## look at HISTORIES (200) simulated histories, and the scenarios with each number of masters
	REDLOCK_HISTORIES=$(or $(HISTORIES),200) REDLOCK_SCALE=full CI=true $(GO) test -run '$(WHOLE)' -count 1 -timeout 10m ./redlock

# etcd is a module of the tests. ZooKeeper is a package, with Java.
contrib-tools: ## install what the tests of contrib need, if it is missing: ZooKeeper, openssl and a browser
	@set -e; \
	browser=; command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || browser=chromium-headless-shell; \
	[ ! -f /usr/share/java/zookeeper.jar ] || ! command -v openssl >/dev/null || [ -n "$$browser" ] || { echo "Nothing is missing."; exit 0; }; \
	as_root() { if [ "$$(id -u)" = 0 ]; then "$$@"; else sudo "$$@"; fi; }; \
	command -v apt-get >/dev/null || { echo "The tests need openssl, chromium, and Debian's package zookeeper." >&2; exit 1; }; \
	as_root apt-get update; \
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends zookeeper libslf4j-java default-jre-headless openssl $$browser

contrib: need-redis ## test what connects to other systems: the modules under redlock/contrib, and the pages in a browser
	@printf '%s\n' $(CONTRIB) .ci/browser | xargs -P 2 -n 1 sh -c 'said=$$(cd "$$0" && CI=true $(GO) test -shuffle=on -timeout 3m ./... 2>&1); \
		status=$$?; printf "%s\n%s\n" "$$0" "$$said"; exit $$status'

# The other packages do not use the transport, or through these alone. Of the lock, what depends on it,
# and without -race: its own code is the same on any transport.
portable: need-redis need-cc ## run the tests on the transport of systems other than Linux
	CI=true GORACE='$(GORACE)' $(GO) test -race -short -shuffle=on -timeout 30m -tags redburst_portable ./conn/... ./mux/...
	CI=true $(GO) test -short -shuffle=on -timeout 30m -tags redburst_portable \
		-run 'Scenarios|Rule[0-9]|Waiter|ProcessesQueue' ./redlock

cover: need-redis ## run the tests and print how much they cover, in coverage.out
	CI=true $(GO) test -coverprofile=coverage.out -coverpkg=./... ./...
	@$(GO) tool cover -func=coverage.out | tail -n 1

# A target whose time is up may be called failed by "context deadline exceeded"
# and nothing else (golang/go#75804, mended in Go 1.27): a target that found
# something says what. A FUZZTIME that is a count, 20000x, has no such end.
fuzz: ## run each fuzz target, or TARGET (FuzzSplit) alone, for FUZZTIME (30s)
	@set -e; found=; log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for package in ./fuzz ./conn ./redlock/internal/record; do all=$$($(GO) test -list '^$(or $(TARGET),Fuzz.*)$$' $$package); \
	for target in $$all; do case $$target in Fuzz*) \
		found=yes; echo "$$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$package 2>&1 | tee "$$log"; \
		grep -q '^ok' "$$log" || awk '/^--- FAIL/ { failed = 1; getline; exit $$0 != "    context deadline exceeded" } \
			END { if (!failed) exit 1 }' "$$log";; \
	esac; done; done; \
	[ -n "$$found" ] || { echo "there is no fuzz target $(TARGET)" >&2; exit 1; }

# Each run prints its seed. SEED repeats the faults of a run. UNFENCED=1 ignores the fence. As root, masters and clients
# have network namespaces, unless LINKS=1 asks for proxies. ARENA=cluster has Redis Clusters for masters, and
# ARENA=sentinel groups: one, or as many as MASTERS says.
chaos: need-redis ## let clients fight while everything fails, for DURATION (60s)
	@$(GO) run ./redlock/redlocktest/chaos -duration $(DURATION) $(if $(SEED),-seed $(SEED)) $(if $(UNFENCED),-unfenced) $(if $(LINKS),-links) $(if $(ARENA),-arena $(ARENA)) $(if $(MASTERS),-masters $(MASTERS))

# BRIEF=1 runs the core scenarios against the oldest Redis and the newest Redis and Valkey. ONLY='redis 8'
# takes some. SERVERS adds servers by their paths. UPDATE=1 looks for newer packages.
servers: ## run the tests that talk to masters against every Redis and Valkey to be had
	@$(GO) run ./redlock/redlocktest/servers $(if $(BRIEF),-brief) $(if $(UPDATE),-update) $(if $(ONLY),-only '$(ONLY)') $(SERVERS)

# ONLY='fence|permits' takes some by their names, AREA='mux/|held/relay' by the files that their texts are in, and CHANGE=main those
# whose texts differ from that revision; WITHIN=2m ends it then. V=1 prints what the tests say. JOBS=2 tries two side by side.
# CHAOS=1 lets a minute of chaos notice what breaks safety, in place of the tests, and demands half of that.
mutants: need-redis ## plant each fault of a list, and see that tests notice it
	@$(GO) run ./redlock/redlocktest/mutants $(if $(ONLY),-only '$(ONLY)') $(if $(AREA),-area '$(AREA)') $(if $(CHANGE),-change '$(CHANGE)') \
		$(if $(WITHIN),-within '$(WITHIN)') $(if $(JOBS),-j $(JOBS)) $(if $(V),-v) $(if $(CHAOS),-chaos)

# The normal tests do the same with a twentieth of everything. It needs 8000 descriptors (ulimit -n).
scale: need-redis ## a thousand clients, 100,000 locks, 10,000 waiters, a million Mutexes: nothing is left (a minute or more)
	REDLOCK_SCALE=full CI=true $(GO) test -run Scale -count 1 -v -timeout 30m ./redlock

# BENCHFLAGS='-cpuset masters=2-7,clients=0-1' pins both apart, if there are so many CPUs. -cases and -libs choose.
bench: need-redis ## compare with the peers (27 minutes), into bench/report
	cd bench && $(GO) run . $(BENCHFLAGS)

bench-quick: need-redis ## compare in five cases (a minute), as a table
	cd bench && $(GO) run . -quick $(BENCHFLAGS)

# PKGS='mux redlock' BENCH=Pair COUNT=20 BENCHTIME=1s compare others; bench/compare.sh says what they are.
# PKGS=bench BENCH='(Acquire|Goroutines)/lib=redburst$$' measures the whole, on masters.
bench-compare: need-redis ## our benchmarks, of revision BASE (HEAD) and of the work tree side by side (5 minutes)
	@exec env BASE='$(BASE)' PKGS='$(PKGS)' BENCH='$(BENCH)' COUNT='$(COUNT)' BENCHTIME='$(BENCHTIME)' GO='$(GO)' bench/compare.sh

# MODULES=. looks at this module alone. The nested ones do not care for the transport. With the tags it looks
# where files depend on them: what the others see of these is type-checked for macOS and Windows by make build, too.
MODULES ?= . bench .ci/release .ci/browser $(EXAMPLES) $(CONTRIB)
lint: ## gofmt, go vet and staticcheck, here and in the nested modules
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted by gofmt:" $$files >&2; exit 1; fi
	@set -e; staticcheck=$$($(TOOL) -n staticcheck); \
	check() { \
		echo "go vet, staticcheck: $$1 $$2"; \
		(cd $$1 && { $(GO) vet -tags "$$2" $$3 & vet=$$!; \
			status=0; GOGC=400 "$$staticcheck" -tags "$$2" $$3 || status=1; wait $$vet && [ $$status = 0 ]; }); \
	}; \
	files() { $(GO) list -tags "$$1" -f '{{.ImportPath}} {{.GoFiles}} {{.TestGoFiles}} {{.XTestGoFiles}}' ./...; }; \
	for module in $(MODULES); do check $$module '' ./...; done; \
	tags=redburst_portable,redburst_embedded; \
	check . $$tags "$$({ files ''; files $$tags; } | sort | uniq -u | cut -d ' ' -f 1 | uniq)"

# A database that was asked for must be there: by VULNDB=..., also in the environment. The default one must be if its host
# takes connections; where it does not, this says so. The exit status of govulncheck is 3 if it has found something,
# and 1 for every failure.
vuln: ## look for known vulnerabilities in VULNDB (https://vuln.go.dev)
	@govulncheck=$$($(TOOL) -n govulncheck) || exit; \
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	for mod in . $(CONTRIB) .ci/release; do \
		status=0; (cd $$mod && "$$govulncheck" -db $(VULNDB) ./...) >"$$log" 2>&1 || status=$$?; \
		cat "$$log"; \
		if [ $$status = 1 ] && [ "$(origin VULNDB)" = file ] && \
				grep -q '^govulncheck: fetching vulnerabilities: .*: dial tcp' "$$log"; then \
			echo "NOT CHECKED for vulnerabilities: there is no way to $(VULNDB) from here."; exit 0; \
		fi; \
		[ $$status = 0 ] || { echo "$$mod: the check for vulnerabilities has failed."; exit $$status; }; \
	done

# go vet type-checks the tests, too. For the platform of this machine lint does it. The tests for arm64 and FreeBSD are
# those for amd64 and macOS: there the code is compiled, and the command alone is linked.
build: ## compile or type-check everything for each supported platform
	$(GO) build ./...
	@set -e; here=$$($(GO) env GOHOSTOS)/$$($(GO) env GOHOSTARCH); for platform in $(PLATFORMS); do \
		[ $$platform != $$here ] || continue; \
		echo "$$platform"; export GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0; \
		case $$platform in \
			linux/arm64|freebsd/*) $(GO) list -export ./... >/dev/null; $(GO) build -o /dev/null ./redlock/cmd/redlock;; \
			*) $(GO) vet ./...;; \
		esac; \
	done

# It checks everything first, and changes nothing until all has passed: redlock/docs/releasing.md says what. Nothing
# leaves the machine without PUSH=1.
release: need-redis need-cc ## commit and tag VERSION (v0.1.0) of all modules
	@cd .ci/release && $(GO) run . -C ../.. -version '$(VERSION)' $(if $(PUSH),-push)

dist: ## make archives and packages of the command, VERSION (v0.1.0) of it, in dist
	@cd .ci/release && $(GO) run . -C ../.. -version '$(VERSION)' -dist ../../dist

user: need-redis ## see the project as a user gets it, and try out how a release is made
	cd .ci/release && CI=true $(GO) test -timeout 15m ./...

# Nothing below installs anything. These two say what is missing.
need-redis:
	@command -v redis-server >/dev/null || command -v valkey-server >/dev/null || \
		{ echo "redis-server (or valkey-server) is missing. To install it, run: make tools" >&2; exit 1; }

need-cc:
	@cc=$$($(GO) env CC); command -v $$cc >/dev/null || \
		{ echo "$$cc is missing, the C compiler that go test -race needs. To install it, run: make tools" >&2; exit 1; }
