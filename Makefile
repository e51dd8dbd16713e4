# Two commands: `make up` and `make down`. `make` lists the rest.
#
#   make up [DRIVER=libvirt|fake] [HOSTS=1] [PORT=8774] [BIND=127.0.0.1] [REDIS_PORT=6390] [STILLWATER_STATE=var]

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
LOCAL := $(PYTHON) -m deploy.local
ALL := not live and not chaos and not matrix
FAST := -m "$(ALL) and not fault"
# a skipped test is a failed set-up
STRICT := -p tests.live.no_skips
UP := $(if $(DRIVER),--driver $(DRIVER)) $(if $(PORT),--port $(PORT)) $(if $(BIND),--bind $(BIND)) \
      $(if $(REDIS_PORT),--redis-port $(REDIS_PORT)) $(if $(HOSTS),--hosts-per-cell $(HOSTS))

# images of CI set it, and every process would compile all of us again
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up down status shell lint test test-fast test-faults test-postgres test-live chaos upgrade-test machines-test matrix simulate bench wheel requirements changelog clean bootstrap test-sqlite

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

up: ## install what is missing, start a whole cloud, boot a guest
	@deploy/bootstrap.sh --driver $(or $(DRIVER),libvirt)
	@$(LOCAL) up $(UP)

down: ## stop all of it gracefully
	@$(LOCAL) down

status: ## every process, queue, host and guest
	@$(LOCAL) status

shell: ## Django's shell on the running cloud
	@$(PYTHON) manage.py shell

bootstrap: ## install what the tests need: packages, Python environment
	@deploy/bootstrap.sh --tests

lint: ## style, types, imports, settings, migrations, units, manifests, change fragments
	.venv/bin/ruff check .
	.venv/bin/mypy cloud cells compute tasks deploy
	.venv/bin/lint-imports
	$(PYTHON) manage.py check
	$(PYTHON) manage.py makemigrations --check --dry-run
	$(PYTHON) -m deploy.validate
	$(PYTHON) -m deploy.systemd --check
	$(PYTHON) -m deploy.kubernetes --check
	.venv/bin/towncrier build --draft >/dev/null

test-fast: ## between two edits: no real guests, no faults or races, a sample of the others, on SQLite; STORIES=1 API=1: all others
	$(PYTEST) -n 2 $(FAST) --sample stories=$(or $(STORIES),16) --sample api=$(or $(API),4) $(STRICT)

test-faults: ## only where something fails, is first or waits, on SQLite
	$(PYTEST) -n 2 -m "fault and $(ALL)" --sample faults=$(or $(FAULTS),1) $(STRICT)

test-sqlite: # both in one run: tests are collected once
	$(PYTEST) -n 2 -m "$(ALL)" --sample faults=$(or $(FAULTS),1) --sample stories=$(or $(STORIES),1) $(STRICT)

test-postgres: ## the fast tests and races that use a database, on a temporary PostgreSQL server, every 16th story
	$(PYTHON) -m tests.servers.postgres $(PYTEST) -n 2 -p tests.databases --sample stories=$(or $(PG_STORIES),16) -m "$(ALL) and (race or not fault)" $(STRICT)

test-live: ## real Redis, workers, guests and clients, also killed; LIVE=4: one in four files of tests
	$(PYTEST) -n 3 --dist loadscope -p tests.live.together -m "live or chaos" --sample live=$(or $(LIVE),1) $(STRICT)

test: FAULTS ?= 4
test: LIVE ?= 8
test: STORIES ?= 4
test: bootstrap test-sqlite test-postgres test-live ## all kinds of tests, a sample of the many cases (FAULTS=1 STORIES=1 LIVE=1: all); nothing skipped

chaos: ## 3 seeds of faults in a whole cloud, then kill -9 at every failpoint: CHAOS="--seeds 4 --operations 100"
	$(PYTHON) -m tests.chaos $(CHAOS)
	$(if $(CHAOS),,$(PYTHON) -m tests.chaos --points)

upgrade-test: ## an older version (OLD=v0.1.0) becomes this one under load: in order, in the opposite order, by kill -9
	$(PYTHON) -m tests.upgrade $(if $(OLD),--old $(OLD))

machines-test: ## three machines in namespaces: set up by Ansible from the wheel, drained, cut off, upgraded; as root
	$(PYTHON) -m tests.machines

matrix: ## every operation of two hosts x hosts, conductor, broker, all x SIGTERM, kill -9 x every step: MATRIX="-k resize"
	$(PYTEST) -m matrix $(STRICT) -p no:randomly tests/matrix $(MATRIX)

simulate: ## the whole engine on virtual time, every choice from a seed: SEEDS=1-10000, JOBS=2
	$(PYTHON) -m tests.simulation --seeds $(or $(SEEDS),1-1000) --jobs $(or $(JOBS),2)

bench: ## measurements beside their floors
	$(PYTHON) -m bench

wheel: ## dist/stillwater-*.whl: what `pip install` puts on a machine
	$(PYTHON) -m pip wheel -q --no-deps --no-build-isolation -w dist .

requirements: ## compile requirements.txt, requirements-dev.txt and deploy/ironic-requirements.txt from the .in files
	.venv/bin/uv pip compile -q --python-version 3.11 requirements.in -o requirements.txt
	.venv/bin/uv pip compile -q --python-version 3.11 requirements-dev.in -o requirements-dev.txt
	.venv/bin/uv pip compile -q --python-version 3.11 --no-emit-package numpy deploy/ironic-requirements.in \
		-o deploy/ironic-requirements.txt

changelog: ## CHANGELOG.md: the fragments of changes/, under the version in cloud/__init__.py
	.venv/bin/towncrier build --yes

clean: ## delete the state folder and caches; refused while the cloud runs
	@$(LOCAL) clean
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
