# Every habit is one command. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TRY_VENV := .venv-try
TRY_STAMP := $(TRY_VENV)/.installed-$(shell cat pyproject.toml requirements/runtime.lock | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml requirements/test.lock | cksum | cut -d' ' -f1)

# some containers set it; without compiled files each process of a run compiles Headrace again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# HEADRACE_TEST_TOOLS: where `make tools` installs (default ~/.cache/headrace-test-tools)
.PHONY: help try setup release tools deploy-tools image demo demo-growth test test-all check format docs console-pictures requirements bench compat apps spark-versions torture torture-transactions torture-shares torture-streams torture-links hostile hostile-zone hostile-small attacks drills operator-week flood fuzz kubernetes kubernetes-tools lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

try: $(TRY_STAMP) ## install what a user needs into .venv-try and start `headrace dev`: make try [FLAGS="--agents 2"]
	@$(TRY_VENV)/bin/headrace dev $(FLAGS)

$(TRY_STAMP): PYTHON_OF_TRY = $(TRY_VENV)/bin/python
$(TRY_STAMP):
	@echo "installing into $(TRY_VENV) (requirements/runtime.lock, less than a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(TRY_VENV) \
		|| { echo "error: the venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@$(TRY_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile uv \
		|| { echo "error: installing uv, which installs the rest, failed; see above"; exit 1; }
	@$(TRY_VENV)/bin/uv pip install --quiet --python $(PYTHON_OF_TRY) -r requirements/runtime.lock \
		|| { echo "error: installing requirements/runtime.lock failed; see above"; exit 1; }
	@$(TRY_VENV)/bin/uv pip install --quiet --python $(PYTHON_OF_TRY) --no-deps -e . \
		|| { echo "error: installing Headrace itself failed; see above"; exit 1; }
	@rm -f $(TRY_VENV)/.installed-*; touch $@

setup: $(STAMP) ## create .venv with the pinned dependencies and Headrace itself

# uv takes a quarter of the time of pip. pip does it where only pip knows a mirror of the package index.
$(STAMP):
	@echo "setting up $(VENV) (pinned dependencies, about half a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "error: the venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }
	@{ $(BIN)/pip install --quiet --disable-pip-version-check --no-compile uv \
		&& $(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements/test.lock; } \
		|| $(BIN)/pip install --quiet --disable-pip-version-check -r requirements/test.lock \
		|| { echo "error: installing requirements/test.lock failed; see above"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e . \
		|| { echo "error: installing Headrace itself failed; see above"; exit 1; }
	@$(BIN)/python -m compileall -q $(CURDIR)/src/headrace $(CURDIR)/src/headrace/*/  # as pip does with what is not -e
	@rm -f $(VENV)/.installed-*; touch $@

demo: setup ## two agents, a real data set through real clients, one agent killed half-way: make demo [FLAGS="--store azure"]
	@$(BIN)/python -m load.demo $(FLAGS)

demo-growth: setup ## topics grow, shrink, double and halve under load, order per key checked
	@$(BIN)/python -m tests.growth

tools: setup ## install what the tests need: a real S3 server, clients in other languages
	@$(BIN)/python -m tests.tools

deploy-tools: setup ## install what checks deploy/: Helm, kube-score and promtool, built from source (some minutes)
	@$(BIN)/python -m tests.tools deploy

IMAGE_TOOL ?= $(firstword $(foreach tool,docker podman buildah,$(shell command -v $(tool))))
IMAGE ?= headrace
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

image: ## build the images of deploy/Containerfile: make image [IMAGE_TOOL=buildah] [IMAGE=registry/name] [IMAGE_FLAGS=...]
	@for target in agent spark; do \
		suffix=$$([ $$target = agent ] || echo -spark); \
		$(IMAGE_TOOL) build -f deploy/Containerfile --target $$target --build-arg VERSION=$(VERSION) \
			--build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE)$$suffix:$(VERSION) $(IMAGE_FLAGS) . || exit 1; \
	done

test: setup ## the checks and every test but the slow ones: make test [ONLY=tests/agent/fetch] [FAST=1]
	@$(BIN)/python -m tests.run $(if $(ONLY),--only $(ONLY)) $(if $(FAST),--fast)

test-all: setup ## the nightly run, at most 90 minutes: the slow tests, too
	@$(BIN)/python -m tests.run --all

SHARED_TESTS = $(shell find tests -name '*.py' ! -name 'test_*' ! -name conftest.py ! -path 'tests/compat/suites/plugins/*')

check: setup ## format, lint, types, imports, spelling and hard words, without changing anything
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/mypy load $(SHARED_TESTS) && $(BIN)/lint-imports
	@$(BIN)/codespell && $(BIN)/python -m tests.house.words && $(BIN)/python -m tests.house.docstrings && $(BIN)/python -m tests.house.structure

format: setup ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: setup ## write the generated pages
	@$(BIN)/python -m headrace.config.docs > docs/operate/CONFIGURATION.md
	@$(BIN)/python -m headrace.config.topic_docs > docs/operate/TOPIC_CONFIGS.md
	@$(BIN)/python -m headrace.protocol.api_table docs/start/COMPATIBILITY.md
	@$(BIN)/python -m headrace.agent.apis.acl_table docs/operate/ACLS.md
	@$(BIN)/python -m headrace.scan.docs docs/start/SPARK.md
	@$(BIN)/python -m headrace.cli.main cluster schema > docs/operate/cluster-file.schema.json
	@$(BIN)/python -m tests.spark.versions --page
	@$(BIN)/python deploy/licences.py > THIRD_PARTY_LICENSES.md
	@$(BIN)/python -m tests.deploy.chart_pages
	@$(BIN)/python -m tests.deploy.metrics_page
	@$(BIN)/python -m tests.deploy.dashboards

console-pictures: setup ## take the pictures of docs/operate/console/ again (Chromium, five minutes)
	@$(BIN)/python -m tests.cli.console.pictures

requirements: setup ## each numbered promise: its tests, passed or open in the last `make test`
	@$(BIN)/python -m tests.house.requirements_report

bench: setup ## the benchmarks of load/, ratios from one run: make bench [ROWS="commit codec"]
	@$(BIN)/python -m load $(ROWS)

compat: setup ## the client libraries' own tests against Headrace: make compat [SUITE=aiokafka]
	@$(BIN)/python -m tests.compat.suites $(if $(SUITE),--suite $(SUITE))

apps: setup tools ## applications with the files of examples/ (Connect, Streams, Flink, Spark, Quix, Debezium ...), here and on Apache Kafka
	@$(BIN)/pytest -n 0 -m "" tests/compat/apps tests/spark/test_kafka_source.py

spark-versions: setup ## the Spark tests with the oldest and later PySpark: make spark-versions [VERSIONS="4.0.0 4.2.1"]
	@$(BIN)/python -m tests.spark.versions $(VERSIONS)

SECONDS_OF_FAULTS = $(if $(filter command line,$(origin SECONDS)),$(SECONDS),60)

torture: setup ## four real clients under faults, everything checked: make torture SECONDS=60 [SEED=n] [STORE=azure]
	@$(BIN)/python -m tests.torture --seconds $(SECONDS_OF_FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

SECONDS_OF_COPYING = $(if $(filter command line,$(origin SECONDS)),$(SECONDS),120)

torture-transactions: setup ## a topic copied by transactions under faults, exactly once: make torture-transactions SECONDS=120 [SEED=n] [STORE=azure]
	@$(BIN)/python -m tests.transactional_copy --seconds $(SECONDS_OF_COPYING) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

torture-shares: setup ## share consumers of Kafka's Java client under faults: make torture-shares SECONDS=120 [SEED=n]
	@$(BIN)/python -m tests.share_torture --seconds $(SECONDS_OF_COPYING) $(if $(SEED),--seed $(SEED))

torture-streams: setup tools ## an application of Kafka Streams under faults, exactly once: make torture-streams SECONDS=120 [SEED=n]
	@$(BIN)/python -m tests.streams_torture --seconds $(SECONDS_OF_COPYING) $(if $(SEED),--seed $(SEED))

torture-links: setup ## a link copies three nodes of Apache Kafka under kills of both sides: make torture-links SECONDS=120 [SEED=n]
	@$(BIN)/python -m tests.links_torture --seconds $(SECONDS_OF_COPYING) $(if $(SEED),--seed $(SEED))

hostile: setup ## one record per batch from hundreds of producers, idempotent and not
	@$(BIN)/python -m tests.hostile.many_producers

hostile-zone: setup ## the same on two agents of one zone: end to end, and requests between the agents
	@$(BIN)/python -m tests.hostile.two_agents

hostile-small: setup ## one client floods a topic with low latency, and how an ordinary one fares: make hostile-small [STORE=azure]
	@$(BIN)/python -m tests.hostile.small_files $(if $(STORE),--store $(STORE))

attacks: setup ## attack one agent in every known way; memory and stalls, and how ordinary clients fare: make attacks [NAMES="..."] [STORE=azure]
	@$(BIN)/python -m tests.hostile $(if $(STORE),--store $(STORE)) $(NAMES)

drills: setup ## an agent, a zone, Postgres or the bucket is lost, and back: make drills [NAMES="agent_lost zone_lost"] [STORE=azure]
	@$(BIN)/python -m tests.drills $(if $(STORE),--store $(STORE)) $(NAMES)

operator-week: setup ## all drills and a restore, judged, in less than 15 minutes
	@$(BIN)/python -m tests.drills.operator_week $(NAMES)

flood: setup ## a slow bucket, a failing one, too many connections and producers: make flood [NAMES="..."]
	@$(BIN)/python -m tests.flood $(NAMES)

fuzz: setup ## random requests against one agent, and how ordinary clients fare
	@$(BIN)/python -m tests.fuzz

kubernetes: setup ## the Helm chart on a real control plane, without containers: make kubernetes [SCENARIOS="install spark"]
	@$(BIN)/python -m tests.kubernetes $(SCENARIOS)

kubernetes-tools: setup ## build what `make kubernetes` needs: Kubernetes, etcd and Helm from Go modules, about 8 minutes
	@$(BIN)/python -m tests.kubernetes.programs

release: setup ## wheel, sdist and packaged chart in dist/, all with one version and without known vulnerabilities
	@$(BIN)/pip install --quiet uv && $(BIN)/python deploy/release.py

lock: setup ## pin the newest dependencies that pyproject.toml allows
	@$(BIN)/pip install --quiet uv && $(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --extra test \
		--no-emit-index-url --no-header pyproject.toml -o requirements/test.lock
	@$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --extra embedded --constraint requirements/test.lock \
		--no-annotate --no-emit-index-url --no-header pyproject.toml -o requirements/runtime.lock

clean: ## remove what the commands above made
	@rm -rf $(VENV) $(TRY_VENV) .test-results .demo .demo-growth build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
