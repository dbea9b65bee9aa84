# The same targets on a laptop and in CI; each needs nothing but `make setup`, which it calls itself.
# A step that fails stops the target, with its output on the screen.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:

export PATH := $(CURDIR)/.venv/bin:$(if $(wildcard $(HOME)/.cargo/bin),$(HOME)/.cargo/bin:)$(PATH)
export UV_PROJECT_ENVIRONMENT := .venv
export UV_HTTP_TIMEOUT := 60
ifdef CI # builds once, and debugs nothing
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := false
endif
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
CARGO_TEST = cargo test --quiet --locked --no-fail-fast --workspace --target $(HOST)
# The slowest tests of each target stand in its log.
PYTEST = .venv/bin/python -m pytest --durations=15 --durations-min=5
# In CI the fault tests run with one seed of each kind, another one than in test-core; by hand with 5.
# `make fault SEEDS=500 FIRST=7` runs others.
SEEDS ?= $(if $(CI),1,5)
FIRST ?= $(if $(CI),2,1)
MINUTES ?= 10

# The same inputs each time: the order of tests, what Hypothesis draws, and the mutations of the fuzzers' corpus have seeds.
SEEDED = --randomly-seed=1
# Two at a time, a file at a time: tests of a file share what they start.
TWO := -n 2 --dist loadfile
# A group is a folder of tests that share one cluster or server, or need none. TESTS_x: where it is not tests/x;
# OPTIONS_x: `$(TWO)` where its files share nothing.
# An extension is a folder of extensions/; its tests that need no cluster, browser or world of attacks run with it and the core alone.
EXTENSIONS := $(notdir $(patsubst %/,%,$(wildcard extensions/*/)))
GROUPS := benches postgresql browser rabbitmq transfer rucio xcache containers squashfs sge pbs slurm slurmdbd ordinary local commands attack fault integrations
TESTS_postgresql := tests/contract
TESTS_integrations := integrations/tests
TESTS_xcache := extensions/caches/tests/xcache
TESTS_rucio := extensions/replicas/tests/rucio
TESTS_rabbitmq := extensions/messages/tests/rabbitmq
TESTS_sge := extensions/gridengine/tests/sge
TESTS_slurmdbd := extensions/study/tests/slurmdbd
TESTS_attack := tests/attack extensions/caches/tests/attack extensions/calls/tests/attack extensions/downtimes/tests/attack extensions/images/tests/attack extensions/replicas/tests/attack extensions/report/tests/attack extensions/tokens/tests/attack
TESTS_squashfs := tests/squashfs extensions/images/tests/squashfs
TESTS_local := tests/local/node tests/local/server tests/local/site extensions/stress/tests/site
TESTS_commands := tests/local/cli tests/local/examples
TESTS_browser := tests/browser extensions/report/tests/browser extensions/stress/tests/browser extensions/study/tests/browser
# With the seeded tests of which test-core runs one seed.
TESTS_fault := tests/fault extensions/messages/tests/fault tests/e2e/test_bad_state.py::test_torn_journals_lose_and_double_nothing \
  tests/e2e/test_pythia_campaign.py::test_killed_parts_change_no_event_and_the_analysis_reads_them_all
OPTIONS_postgresql := -m postgresql -n 2 --dist loadfile
OPTIONS_transfer := $(TWO)
# They wait for XCache most of the time: it purges and closes files once a minute.
OPTIONS_xcache := -n 4 -m 'not long'
OPTIONS_containers := $(TWO)
OPTIONS_squashfs := $(TWO)
OPTIONS_benches := -n 2
OPTIONS_slurmdbd := $(TWO)
OPTIONS_local := $(TWO)
OPTIONS_commands := $(TWO)
OPTIONS_attack := $(TWO)
OPTIONS_fault = -n 2 -m 'not long' --fault-seeds $(SEEDS) --fault-first $(FIRST)
# What a group takes of the ROOM beside others, in tenths of a processor: of two processors, and a little more, as each
# waits at times. Clusters and services mostly wait: the tests of extensions run beside them. `fault` alone keeps two
# processors busy; beside others its own deadlines pass. What takes longest comes first, then what fills the room;
# `s3-server` is what test-transfer waits for.
ROOM := 24
ORDER := \
  test-slurm:4 test-ordinary:4 test-sge:4 $(EXTENSIONS:%=test-%:6) check-rust:12 s3-server:12 test-local:12 test-commands:12 test-attack:12 test-pbs:9 test-browser:10 test-postgresql:12 test-transfer:8 \
  test-xcache:8 test-slurmdbd:8 test-integrations:8 test-rucio:8 test-rabbitmq:8 test-squashfs:10 test-containers:8 test-benches:12 test-fault:24

.PHONY: help fuzz schemathesis large setup node quickstart s3-server test test-groups test-all $(GROUPS:%=test-%) $(EXTENSIONS:%=test-%) test-extensions check check-python check-rust test-core test-rust gen fault cut bench screenshots site bench-slurm dist release bundle container clean

help: ## say what the targets are
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

setup: ## all set-up; quick when nothing has changed
	@scripts/setup.sh

node: ## only build tidemill-node anew and install it into .venv
	@scripts/setup.sh node

quickstart: ## a campaign of real Pythia jobs on this machine, with a report
	@scripts/setup.sh run
	@.venv/bin/tidemill quickstart

# Side by side: a target waits for the processor time of the other ones only.
TEST := test-core:12 test-rust:8 check-python:4
test: setup ## the core's tests and checks: types, house rules, unit, property, contract and end-to-end tests, cargo test
	@.venv/bin/python scripts/run_stages.py --room=$(ROOM) $(TEST)

# WITHOUT="test-x test-y" leaves some out; ORDER="test-x test-y" runs only these.
test-groups: setup ## the rest: each extension alone, clippy, each group that needs a cluster, a server or a browser
	@.venv/bin/python scripts/run_stages.py --room=$(ROOM) $(WITHOUT:%=--without=%) $(ORDER)

test-all: setup ## `make test`, then `make test-groups`
	@.venv/bin/python scripts/run_stages.py --room=$(ROOM) $(TEST) $(ORDER)

check: setup check-python check-rust ## formats, types, walls between packages, house rules, generated files

check-python: setup
	@.venv/bin/ruff check --quiet .
	.venv/bin/ruff format --quiet --check . || { .venv/bin/ruff format --diff . || exit 1; }
	.venv/bin/mypy --strict
	.venv/bin/lint-imports --no-cache
	.uv/venv/bin/uv lock --check --quiet
	.venv/bin/python scripts/gen_wire.py --check
	for page in states failures config files metrics dashboard notebook; do .venv/bin/python scripts/draw_$$page.py --check; done
	$(PYTEST) -q -p no:randomly tests/test_tidy.py tests/test_walls.py
	$(MAKE) --no-print-directory site

check-rust: setup
	@cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets --target $(HOST) -- -D warnings
	.venv/bin/python scripts/third_party.py --check

environments: setup ## clean environments in target/environments: the core, and the core with each extension
	@scripts/environments.sh core $(EXTENSIONS)

test-core: PYTEST = target/environments/core/bin/python -m pytest --durations=15 --durations-min=5
test-core: setup ## the core's tests where no extension is installed
	@scripts/environments.sh core
	$(PYTEST) -q -n 2 --dist worksteal $(SEEDED) --fault-seeds 1 -m 'not postgresql and not long' tests/unit tests/property tests/fuzz tests/contract \
	  tests/e2e tests/local/site/test_batch_contract.py

# For example `make test-study`.
$(EXTENSIONS:%=test-%): PYTEST = target/environments/$(@:test-%=%)/bin/python -m pytest --durations=15 --durations-min=5
$(EXTENSIONS:%=test-%): test-%: setup
	@scripts/environments.sh $*
	$(PYTEST) -q $(TWO) $(SEEDED) $(if $(wildcard extensions/$*/tests/fuzz),--fuzz-of $* tests/fuzz) $(wildcard extensions/$*/tests/test_*.py) \
	  $(wildcard $(addprefix extensions/$*/tests/,unit property contract local))

test-extensions: $(EXTENSIONS:%=test-%) ## the tests of each extension, where only the core and it are installed

test-integrations: PYTEST = integrations/.venv/bin/python -m pytest -p no:cacheprovider -c integrations/pytest.ini
test-integrations: SEEDED =
test-integrations: integrations/.venv/wanted
integrations/.venv/wanted: setup
	@scripts/integrations.sh

# The S3 server of tests is built beside groups that do not need it: its crates may take long to come.
test-transfer large bench: .tools/bin/s3s-fs
s3-server: .tools/bin/s3s-fs
.tools/bin/s3s-fs: setup
	@scripts/setup.sh s3

$(GROUPS:%=test-%): test-%: setup # for example: make test-slurm
	@$(PYTEST) -q $(SEEDED) $(OPTIONS_$*) $(or $(TESTS_$*),tests/$*)

test-rust: setup
	@PROPTEST_RNG_SEED=1 $(CARGO_TEST)

fault: setup ## fault tests only, with those that take minutes: SEEDS=50 FIRST=1
	@$(PYTEST) -q -n 2 --fault-seeds $(if $(filter command,$(origin SEEDS)),$(SEEDS),50) --fault-first $(FIRST) $(TESTS_fault)

fuzz: setup ## look for inputs that parsers mishandle, MINUTES=10, with random numbers; what is found goes into the corpus
	@status=0
	.venv/bin/python -m tests.fuzz.hunt --minutes $(MINUTES) || status=1
	$(PYTEST) -q --hypothesis-profile=soak tests/property || status=1
	seconds=$$(( $(MINUTES) * 60 / 12 )) # about a dozen parsers in Rust take turns on a few cores
	TIDEMILL_FUZZ_KEEP=1 TIDEMILL_FUZZ_SEED=$$RANDOM TIDEMILL_FUZZ_SECONDS=$$seconds $(CARGO_TEST) hostile || status=1
	exit $$status

schemathesis: setup ## every route of the API against its OpenAPI document, 2,000 cases of each: half an hour
	@$(PYTEST) -q --api-examples 2000 --api-seed $$RANDOM tests/contract/test_api_fuzzed.py

large: setup ## files of 1 GB by every protocol, with servers that are killed: 5 minutes
	@$(PYTEST) -q tests/large $(wildcard extensions/*/tests/large)

gen: setup ## write the generated files: schema, Rust types, licences of crates, pages of the documentation
	@.venv/bin/python scripts/gen_wire.py
	.venv/bin/python scripts/third_party.py
	for page in states failures config files metrics dashboard notebook; do .venv/bin/python scripts/draw_$$page.py; done
	.venv/bin/python -m tidemill.cli.reference > docs/cli.md
	for page in extensions/*/docs/cli.md; do name=$${page#*/}; .venv/bin/python -m tidemill.cli.reference $${name%%/*} > $$page; done

cut: setup ## messages through a TCP cut of 60 s: three minutes
	@TIDEMILL_CUT_S=60 $(PYTEST) -q extensions/messages/tests/rabbitmq/test_amqp_faults.py

bench: setup ## the figures: dispatch, store, pages, the worst submitter and owner, lead, traces, images, I/O budget, transfers, caches and reports, one JSON object each
	@for bench in dispatch store pages worst worst_owner lead trace image io_budget transfer cache report; do .venv/bin/python bench/$$bench.py --json; done

site: setup ## docs/ as a site in target/site, built strictly: no dead link, every page in the navigation
	@[ -x .uv/site/bin/zensical ] && cmp -s scripts/site-requirements.txt .uv/site/installed || {
	  .uv/venv/bin/uv venv --quiet --clear --python .venv/bin/python .uv/site
	  .uv/venv/bin/uv pip install --quiet --python .uv/site/bin/python -r scripts/site-requirements.txt
	  cp scripts/site-requirements.txt .uv/site/installed
	}
	.venv/bin/python scripts/build_site.py .uv/site/bin/zensical

screenshots: setup ## the pictures of docs/web.md and of extensions, made by the browser tests
	@TIDEMILL_SCREENSHOTS=docs/web $(PYTEST) -q tests/browser/test_web_pages.py -k every_page
	TIDEMILL_SCREENSHOTS=extensions/report/docs $(PYTEST) -q extensions/report/tests/browser/test_report_page.py -k each_figure
	TIDEMILL_SCREENSHOTS=extensions/stress/docs $(PYTEST) -q extensions/stress/tests/browser/test_web_stress.py -k light
	TIDEMILL_SCREENSHOTS=extensions/study/docs $(PYTEST) -q extensions/study/tests/browser/test_opportunity_page.py -k each_figure

bench-slurm: setup ## as root, 40 minutes: a real Slurm with and without us, side by side
	@.venv/bin/python bench/slurm_harvest.py --json

# maturin itself, not `uv build`: through PEP 517 the wheel would not get its manylinux tag
dist: setup ## all distributions in dist/ with their software bills of materials, checked
	@rm -rf dist
	.venv/bin/python scripts/sbom.py dist
	cd crates/tidemill-node
	cp ../../dist/tidemill-node.cdx.json . # maturin takes it from its own folder only
	../../.venv/bin/maturin build --profile dist --locked --target $(HOST) --sbom-include tidemill-node.cdx.json --out ../../dist
	rm tidemill-node.cdx.json
	cd ../..
	for package in tidemill $(EXTENSIONS:%=tidemill-%); do .uv/venv/bin/uv build --quiet --package $$package --out-dir dist; done
	.venv/bin/python scripts/check_dist.py dist

release: ## all distributions of what is committed, installed in a clean environment that runs the quick start
	@scripts/release.sh check
	@$(MAKE) dist
	@scripts/release.sh check
	@scripts/release.sh try dist

bundle: dist ## as root on Debian: one file that installs Tidemill without a network, for x86_64 and aarch64
	@scripts/aarch64.sh dist
	.venv/bin/python scripts/bundle.py dist dist

container: dist ## as root: build the server's container without a registry of images, run it, ask for its health
	@/usr/bin/python3 -m pip download -q --find-links dist -d target/wheels dist/tidemill_node-*.whl "$$(echo dist/tidemill-*.whl)[all,certs,postgresql]"
	cp dist/*.whl target/wheels/
	scripts/container.sh target/wheels

clean: ## remove what was built; keeps .venv and .uv
	@rm -rf target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src extensions tests bench scripts -name __pycache__ -prune -exec rm -rf {} +
