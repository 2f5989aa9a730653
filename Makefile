# Everything a developer or a newcomer runs. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

# Members of the legacy protocol, and tools, on servers and connections that fail.
FAULTS := $(filter-out tests/faults/test_coordinator%,$(wildcard tests/faults/test_*.py)) \
    tests/integration/test_kazoo_patch.py

# Messages in files and in data frames.
FILES := tests/integration/test_consume_files.py tests/integration/test_arrow_how_to.py

# Groups on real brokers, which `make test` leaves to a target of their own.
COORDINATOR := $(wildcard tests/faults/test_coordinator*.py tests/integration/test_coordinator*.py) \
    $(wildcard tests/integration/test_herd*.py) \
    tests/integration/test_acceptance.py tests/integration/test_live_move.py tests/integration/test_transactions.py

# Commands of zkmigrate at every point, on a simulated cluster. They compute as long as the simulator does.
EVERY_POINT := $(patsubst %,tests/migrate/test_%.py,mirror mirror_across operators live_operators matrix)

# What is run in pure Python by `make test`, and on the compiled wheel by `make test-compiled`.
ON_BOTH_BUILDS := $(wildcard tests/unit/test_records.py tests/unit/test_columns.py tests/unit/test_streams*.py tests/unit/test_messages.py tests/unit/test_codecs*.py)

# Tests wait more than they compute: so many run at once. A worker has servers of its own, and a
# file's tests stay together, so that the servers of a module start once.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))
BY_FILE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
BY_TEST = -n $(WORKERS) --dist worksteal

# Spark starts without recorded classes too, in twice the CPU time.
RECORD_SPARK = -m tests.support.small_spark || echo "warning: Spark's classes are not recorded; tests take longer" >&2

# Without bytecode, each process of Python compiles all that it imports: a worker of pytest needs three
# times the CPU time to collect its tests. Images for containers often turn it off.
unexport PYTHONDONTWRITEBYTECODE

# Most modules of an environment are never imported, so pip does not compile them all.
export PIP_COMPILE := 0

# Names the target in the table that CI prints (tests/times.py).
export ZKC_TARGET = $@

.DEFAULT_GOAL := help
.PHONY: help setup system browser kerberos jars spark-classes test test-unit test-sim test-faults restores test-files test-coordinator test-migrate test-migrate-all test-audit test-docker test-calls test-compiled test-compiled-all test-sim-all rare soak soak-sample soak-hour soak-recovery fuzz attack mutants held-out repro interop check demo demo-audit demo-herd demo-migrate demo-mirror mirror-faults live-kills live-estate bench clean test-zombies estate bench-page bench-other-cluster bench-groups bench-tools test-kraft test-peers test-secure test-names docs release test-wheels test-python test-extras test-spark test-interop incidents report-pictures test-corpus

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: setup ## start real servers and show a group at work
	$(BIN)/zkconsumer demo

demo-herd: setup ## one member joins: what it costs, on a real ZooKeeper and simulated (2 minutes)
	@mkdir -p build
	$(BIN)/zkconsumer herd --members 10,20,40 --partitions 100 --simulate --html build/herd-real.html
	$(BIN)/zkconsumer simulate --members 10,100,1000 --partitions 1000 --html build/herd-simulated.html
	@echo "reports: build/herd-real.html build/herd-simulated.html"

demo-audit: setup ## members with injected faults on real servers, and the audit that finds them (2 minutes)
	rm -rf build/demo-audit
	$(BIN)/zkaudit demo --out build/demo-audit

demo-migrate: setup ## move legacy groups to Kafka and back on real servers, with a kill in between
	$(BIN)/python -m tests.migrate.demo

demo-mirror: setup ## a JVM group is mirrored, cut over to a new program, back and forward again (2 minutes)
	$(BIN)/python -m tests.migrate.demo_mirror

demo-live: setup ## a running group moves to the coordinator, back and forward again (2 minutes)
	$(BIN)/python -m tests.migrate.demo_live

live-kills: setup ## 60 live moves in which something is killed in each stage; results in build/live-kills.jsonl (two hours; ARGS='--runs 4')
	$(BIN)/python -m tests.migrate.live_kills $(ARGS)

mirror-faults: setup ## a mirrored group under 40 faults of everything that takes part (10 minutes; ZKC_SEED=7)
	MIRROR_FAULTS=40 $(BIN)/pytest -s tests/migrate/test_mirror_on_servers.py -k killed_at_random

live-estate: setup ## 200 running groups are moved by one command for each stage (5 minutes)
	$(BIN)/python -m tests.migrate.live_estate $(ARGS)

test: check test-unit ## checks, unit tests, and members and tools on real servers
	$(BIN)/pytest $(BY_FILE) tests/integration $(patsubst %,--ignore=%,$(COORDINATOR) $(FAULTS) $(FILES))

test-unit: $(STAMP) ## the tests of functions and classes, of properties and of the project itself (a minute)
	$(BIN)/pytest $(BY_TEST) tests/unit tests/property tests/repo

test-sim: $(STAMP) ## groups, migrations, models and decoders in virtual time, with random faults and inputs (4 minutes)
	$(BIN)/pytest $(BY_TEST) --timeout=1500 tests/sim tests/model tests/fuzz $(EVERY_POINT)

test-faults: setup ## members and tools on servers and connections that fail
	$(BIN)/pytest $(BY_FILE) $(FAULTS)

restores: setup ## 20 times a ZooKeeper server that starts with older data, below a group (10 minutes; ZKC_RESTORES=20:20)
	ZKC_RESTORES=$${ZKC_RESTORES:-0:20} $(BIN)/pytest $(BY_TEST) tests/faults/test_restored.py

test-files: setup ## messages written to files, and read into data frames
	$(BIN)/pytest $(BY_FILE) $(FILES)

test-coordinator: setup browser spark-classes ## groups on the broker's coordinator, and herds
	$(BIN)/pytest $(BY_FILE) $(COORDINATOR)

test-migrate: setup ## all tests of zkmigrate but those of commands at every point (test-sim)
	$(BIN)/pytest $(BY_FILE) tests/migrate $(patsubst %,--ignore=%,$(EVERY_POINT))

test-migrate-all: setup ## 30,000 points of commands, 1,000 round trips, and every command in every state (an hour)
	ZKC_POINTS=10000 ROUND_TRIP_GROUPS=1000 MATRIX=all $(BIN)/pytest tests/migrate/test_operators.py \
	    tests/migrate/test_round_trip.py tests/migrate/test_matrix_on_servers.py

test-zombies: setup ## a suspended consumer of the JVM wakes up at 50 moments of a move (15 minutes)
	JVM_MOMENTS=25 $(BIN)/pytest -s tests/migrate/test_late_writers.py -k wakes_up

estate: setup ## 2,000 groups of 20 partitions, 1 % of them broken: is each found, and how long does it take?
	$(BIN)/python -m tests.migrate.bench_estate

test-audit: setup browser spark-classes ## all tests of zkaudit
	$(BIN)/pytest $(BY_FILE) --timeout=1500 tests/audit

test-corpus: setup ## all labelled incidents, also in a log that begins late, and in all rounds of a stream (test-audit: a part)
	CORPUS=all $(BIN)/pytest tests/audit/tables/test_corpus.py tests/audit/tables/test_rounds.py \
		tests/audit/test_doubt.py tests/audit/test_begin_at_snapshot.py \
		tests/audit/tables/test_local_findings.py

report-pictures: setup ## the light and the dark picture of the report in docs/images, from the labelled incidents
	$(BIN)/python -m tests.audit.corpus.picture

incidents: setup ## audit the labelled incidents: precision and recall (ARGS=--play records them again on a real server)
	$(BIN)/python -m tests.audit.corpus.judge $(ARGS)

test-kraft: setup ## brokers without ZooKeeper, and the change to them (90 seconds; KRAFT_GROUPS=all: all groups read)
	$(BIN)/pytest $(BY_FILE) tests/kraft

# Their clients have pinned versions, and an environment of their own. kafka-utils pins libraries that no
# longer build, so pip looks at no requirements.
test-peers: setup ## real clients of other projects in one group with ours: kafka-node, kafkajs, pykafka, kafka-utils (3 minutes)
	@command -v npm >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null; } || \
	    { echo "error: install npm (Debian and Ubuntu: sudo apt install npm)" >&2; exit 1; }
	mkdir -p build/peers && cp tests/peers/package.json tests/peers/member.js build/peers/
	cd build/peers && npm install --silent --no-audit --no-fund --no-package-lock --omit=optional
	test -x build/peers/python/bin/python || $(PYTHON) -m venv build/peers/python
	build/peers/python/bin/python -m pip install --quiet --no-deps --requirement tests/peers/requirements.txt
	$(BIN)/pytest tests/peers

test-secure: setup kerberos ## TLS, SASL, Kerberos and access lists, a sample of two minutes (SECURE=all: every combination)
	$(BIN)/pytest -n 1 tests/secure

# In a folder of its own: the tests import the wheel's package, not the one beside them.
test-compiled: setup ## the tests of decoder and streams on the compiled wheel, and both builds compared
	rm -rf build/compiled && mkdir -p build/compiled
	ZKCONSUMER_COMPILE=yes $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/compiled .
	cd build/compiled && ../../$(BIN)/python -m zipfile -e *.whl . && cp -r ../../tests ../../pyproject.toml .
	cd build/compiled && ../../$(BIN)/pytest $(BY_FILE) tests/compiled $(ON_BOTH_BUILDS)

test-compiled-all: test-compiled ## tests of faults, of interop and of the simulator on the compiled wheel (15 minutes)
	cp -r docs README.md build/compiled/
	cd build/compiled && PYTHONPATH=$$PWD ../../$(BIN)/pytest $(BY_FILE) tests/faults tests/interop tests/sim tests/property

docs: $(STAMP) ## the documentation site in build/docs, without warnings, dead links or dead anchors (half a minute)
	@$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/docs
	$(BIN)/pytest tests/site
	@echo "open build/docs/index.html"

test-wheels: setup ## both wheels built, installed into empty environments and run (ZKC_PYTHONS=all: each CPython found)
	@$(BIN)/python -m pip install --quiet --group wheels
	$(BIN)/pytest tests/wheels/test_wheels.py

release: setup ## the files of a release in dist: built twice and compared, installed, run, listed and signed (ARGS='--key FILE')
	@command -v ssh-keygen >/dev/null || { echo "error: install openssh-client" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --group release
	ZKC_PYTHONS=$${ZKC_PYTHONS:-all} $(BIN)/python -m tests.wheels.release $(ARGS)

# Python's releases are in the package sources of a later Debian before they are in those of this one.
test-python: ## the compiled wheel and the quick start on the Python of a later Debian, in a chroot: as root (10 minutes; SUITE=forky PYTHON_VERSION=3.14)
	@command -v debootstrap >/dev/null || { echo "error: install debootstrap" >&2; exit 1; }
	tests/wheels/in_debian.sh $(or $(SUITE),forky) $(or $(PYTHON_VERSION),3.14)

test-extras: setup kerberos ## each extra installed alone into an empty environment, and what it promises used (2 minutes after the first time)
	$(BIN)/pytest tests/wheels/test_extras.py

# Delta and Iceberg have no jars for the newest Spark, which the other tests use.
test-spark: setup ## zkaudit on the oldest Spark that it supports: sources, streams, audits, Delta, Iceberg (4 minutes)
	test -x build/spark/bin/python || $(PYTHON) -m venv build/spark
	build/spark/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	ZKCONSUMER_COMPILE=no build/spark/bin/python -m pip install --quiet --editable '.[audit]' --group dev 'pyspark==4.0.0'
	@build/spark/bin/python $(RECORD_SPARK)
	build/spark/bin/pytest tests/audit/test_sources.py tests/audit/tables/test_job.py
	build/spark/bin/pytest tests/lakes

test-docker: setup ## servers and members in containers; skipped where no Docker engine can be had
	docker/engine.sh run $(BIN)/pytest tests/docker

test-calls: setup ## every call that can wait, with servers silent or down in every way (2 minutes)
	CALLS=all $(BIN)/pytest tests/faults/test_calls_end.py

test-sim-all: $(STAMP) ## 10,000 runs of simulated groups, a quarter of each kind (ZKC_SEEDS=first:count), 10,000 of groups that move, and the models
	$(BIN)/python -m tests.sim.all $(or $(ZKC_SEEDS),0:10000)
	$(BIN)/python -m tests.sim.all $(or $(ZKC_SEEDS),0:10000) live
	ZKC_MODELS=all $(BIN)/pytest tests/model

test-names: setup ## 30 members whose servers move, with a resolver that lies (8 minutes; ZKC_SEED=7: one)
	ZKC_DNS_RUNS=30 $(BIN)/pytest -s tests/faults/test_lying_dns.py

rare: setup ## rare branches that no simulated run enters (5 minutes; ZKC_SEEDS=0:100)
	$(BIN)/python -m tests.sim.rare $(or $(ZKC_SEEDS),0:100)

soak: setup ## a group of each kind under 200 faults in 10 minutes, judged by zkaudit (ARGS='--kind mixed --seed 7')
	$(BIN)/python -m tests.soak --kind all --audit $(ARGS)

soak-sample: setup ## two minutes of it (what CI runs)
	$(BIN)/python -m tests.soak --seed 30 --seconds 60 --members 5 --partitions 32 --rate 1000 $(ARGS)

soak-hour: setup ## an hour with a fault every 10 s: does a member's memory grow?
	$(BIN)/python -m tests.soak --seconds 3600 --every 10 $(ARGS)

soak-recovery: setup ## one fault at a time on a quiet group: how long until every partition is delivered
	$(BIN)/python -m tests.soak --recovery 3 $(ARGS)

fuzz: $(STAMP) ## coverage-guided fuzzing of every decoder of foreign bytes (a minute each)
	@$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m tests.fuzz.run

attack: setup ## 10,000 faults on the connection to ZooKeeper, 2,000 on whole members, 100,000 hostile znodes (an hour)
	ZKC_FAULTS=10000 $(BIN)/pytest -s tests/faults/test_zk_attack.py
	ZKC_MEMBER_FAULTS=2000 ZKC_HOSTILE=1000 $(BIN)/pytest -s tests/faults/test_member_attack.py \
	    tests/faults/test_hostile_group.py
	ZKC_ZNODES=100000 $(BIN)/pytest -s tests/fuzz/test_hostile_znodes.py

repro: $(STAMP) ## list the bugs of the past; make repro-NAME shows one on the build that had it
	$(BIN)/python -m tests.record

repro-%: $(STAMP)
	$(BIN)/python -m tests.record $*

mutants: $(STAMP) ## plant known bugs, two at a time: does a test find each? 15 minutes (ARGS="--only NAME --json")
	$(BIN)/python -m tests.mutants.run $(ARGS)

held-out: $(STAMP) ## plant bugs at random where nobody has planted one: how many do tests find? (half an hour; ARGS="SEED COUNT")
	$(BIN)/python -m tests.mutants.at_random $(ARGS)

test-interop: setup ## our members beside the original consumer: any two values of a test's parameters meet (3 minutes)
	$(BIN)/pytest $(BY_TEST) tests/interop

interop: setup ## the same, every case (about 8 minutes); writes docs/reference/interop.md
	rm -f build/interop.jsonl
	INTEROP=all $(BIN)/pytest $(BY_TEST) tests/interop
	$(BIN)/python -m tests.interop.table

check: setup ## lint, spelling, format, types, import contracts
	$(BIN)/ruff check
	$(BIN)/codespell *.md *.toml Makefile docs zkconsumer migrate spark tests docker
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## us beside the JVM's consumers and other clients, 5 rounds (ARGS='--only latency --rounds 2')
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m tests.bench.speed $(ARGS)

bench-matrix: setup ## every size of message and batch and every codec, beside other clients (hours; a later call continues)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m tests.bench.speed.matrix $(ARGS)

bench-page: $(STAMP) ## the recorded figures into docs/explanation/speed.md
	$(BIN)/python -m tests.bench.speed.page

bench-other-cluster: setup ## offsets for another cluster by MirrorMaker 2, by times and by zkmigrate, judged by content (2 minutes; ARGS='--many 40000')
	$(BIN)/python -m tests.migrate.bench_other_cluster $(ARGS)

bench-groups: setup ## six members of ours, Java and librdkafka on Kafka 4, killed under load for 4 minutes (ARGS=roll, ARGS=wide)
	$(BIN)/python -m tests.bench.mixed_groups $(or $(ARGS),kills)

bench-tools: setup ## what the other targets of speed came to: audit, decoding of logs, administration
	$(BIN)/python -m tests.bench.run

setup: system $(STAMP) jars ## all that the other targets need; seconds when it is there already

clean: ## delete what the targets made here (not the jars in the user's cache)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml | system
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	ZKCONSUMER_COMPILE=no $(BIN)/python -m pip install --quiet --editable '.[audit,cli,codecs,prometheus,sasl]' --group dev
	@touch $@

# Chromium, in which tests look at reports: installed where apt may, named where not.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	{ echo "error: install Chromium (Debian and Ubuntu: sudo apt install chromium)" >&2; exit 1; }

# MIT Kerberos, for a KDC, and the library gssapi, which is built with its headers: installed where apt
# may, named where not.
kerberos: $(STAMP)
	@PATH=$$PATH:/usr/sbin; missing=; need() { command -v $$1 >/dev/null || missing="$$missing $$2"; }; \
	need krb5kdc krb5-kdc; need kadmin.local krb5-admin-server; need kinit krb5-user; need gcc gcc; \
	need krb5-config libkrb5-dev; \
	test -e "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || missing="$$missing python3-dev"; \
	if [ -n "$$missing" ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "installing:$$missing" >&2; \
	        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null || exit 1; \
	    else echo "error: install MIT Kerberos (Debian and Ubuntu: sudo apt install$$missing)" >&2; exit 1; fi; \
	fi
	@$(BIN)/python -c 'import gssapi' 2>/dev/null || \
	    ZKCONSUMER_COMPILE=no $(BIN)/python -m pip install --quiet --editable '.[kerberos]'

jars: $(STAMP)
	@$(BIN)/python -m zkconsumer.servers

spark-classes: $(STAMP)
	@$(BIN)/python $(RECORD_SPARK)

# Python with venv, Java 17, Maven: installed where apt may, named where not.
system:
	@missing=; named=; need() { missing="$$missing $$1"; named="$$named$${named:+, }$$2"; }; \
	if ! command -v $(PYTHON) >/dev/null; then need "python3 python3-venv" "Python 3.11 with venv"; \
	elif ! test -x $(BIN)/python && ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then need python3-venv "Python's venv"; fi; \
	java=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${java:-0}" -lt 17 ]; then need openjdk-17-jre-headless "Java 17"; fi; \
	if ! command -v mvn >/dev/null; then need maven Maven; fi; \
	if [ -n "$$missing" ]; then \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && grep -qE '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release; then \
	        echo "installing:$$missing" >&2; \
	        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null || \
	            { echo "error: apt-get could not install$$missing: install $$named another way" >&2; exit 1; }; \
	    else echo "error: install $$named (Debian and Ubuntu: sudo apt install$$missing)" >&2; exit 1; fi; \
	fi; \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: $(PYTHON) is older than 3.11: name a newer one with make PYTHON=..." >&2; exit 1; }
