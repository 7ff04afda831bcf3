# `make run` serves the example site, `make test` runs everything CI runs, `make bench` compares with others.
# On a fresh Debian machine with Rust they install what is missing (as root, through apt-get).

CARGO ?= cargo
SHELL := /bin/bash

.PHONY: run fleet build install deb check-deb test fmt-check lint advisories audit unit unit-in-one-piece e2e interop bench bench-quick bench-micro docs test-mruby sanitize-mruby install-build install-lint install-test install-bench

run: install-build build
	@examples/make-cert.sh
	@examples/run.sh target/release/h2o

# Runs three servers behind a balancer (examples/fleet).
fleet: install-build build
	@.ci/install haproxy:haproxy redis-server:redis-server
	@examples/fleet/run.sh target/release/h2o

build:
	$(CARGO) build --release -p h2o

# Installs what `make build` has built below $(DESTDIR)$(PREFIX). The helper programs that configurations name are links to the binary. An
# existing configuration is not overwritten.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
BINARY ?= target/release/h2o
UNITS ?= $(PREFIX)/lib/systemd/system
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
SHARE = $(DESTDIR)$(PREFIX)/share
# Replaces the default prefix in files that contain paths of the installation.
PLACE = sed 's|/usr/local/|$(PREFIX)/|'

install:
	install -D $(BINARY) $(DESTDIR)$(PREFIX)/bin/h2o
	mkdir -p $(SHARE)/h2o $(DESTDIR)$(UNITS)
	for helper in start_server setuidgid kill-on-close annotate-backtrace-symbols fetch-ocsp-response fastcgi-cgi; do \
		ln -sfn ../../bin/h2o $(SHARE)/h2o/$$helper || exit 1; \
	done
	ln -sfn /etc/ssl/certs/ca-certificates.crt $(SHARE)/h2o/ca-bundle.crt
	for unit in h2o.service h2o.socket; do \
		$(PLACE) share/systemd/$$unit > $(DESTDIR)$(UNITS)/$$unit || exit 1; \
	done
	mkdir -p $(SHARE)/man/man8 $(SHARE)/man/man5 $(SHARE)/bash-completion/completions
	mkdir -p $(DESTDIR)$(ZSH_COMPLETIONS) $(SHARE)/fish/vendor_completions.d
	$(BINARY) --generate h2o.8 > $(SHARE)/man/man8/h2o.8
	$(BINARY) --generate h2o.conf.5 > $(SHARE)/man/man5/h2o.conf.5
	$(BINARY) --generate bash > $(SHARE)/bash-completion/completions/h2o
	$(BINARY) --generate zsh > $(DESTDIR)$(ZSH_COMPLETIONS)/_h2o
	$(BINARY) --generate fish > $(SHARE)/fish/vendor_completions.d/h2o.fish
	install -D -m 644 -t $(SHARE)/h2o/site share/site/index.html
	$(BINARY) compress --quiet $(SHARE)/h2o/site
	install -D -m 644 share/logrotate/h2o $(DESTDIR)$(SYSCONFDIR)/logrotate.d/h2o
	mkdir -p $(DESTDIR)$(SYSCONFDIR)/h2o
	test -e $(DESTDIR)$(SYSCONFDIR)/h2o/h2o.conf || $(PLACE) share/h2o.conf > $(DESTDIR)$(SYSCONFDIR)/h2o/h2o.conf

# Builds the Debian package h2o-server from what `make build` has built: target/debian/*.deb.
deb: install-build
	@cargo deb --version >/dev/null 2>&1 || $(CARGO) install --locked --debug cargo-deb
	rm -rf target/deb
	$(MAKE) --no-print-directory install DESTDIR=target/deb PREFIX=/usr \
		ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions
	install -D -m 644 -t target/deb/units target/deb/usr/lib/systemd/system/h2o.service
	$(CARGO) deb --no-build --strip -p h2o

# Installs that package on a clean Debian and uses it as an administrator does (as root; takes some minutes).
check-deb:
	@.ci/install mmdebstrap:mmdebstrap lintian:lintian unshare:util-linux ip:iproute2
	@.ci/check-deb target/debian/h2o-server_*.deb

# The programs that tests need are installed while lint compiles, which takes about as long. Unit tests, which compute, run while
# end-to-end tests wait.
test: install-build install-lint fmt-check
	@$(MAKE) --no-print-directory -j2 --output-sync=target install-test lint
	@$(MAKE) --no-print-directory advisories
	@mkdir -p target
	@set -o pipefail; .ci/reap.py $(MAKE) --no-print-directory -j2 unit-in-one-piece e2e 2>&1 | tee target/test.log
	@awk '/^test result:/ { passed += $$4; failed += $$6 } END { print passed " passed, " failed " failed" }' target/test.log

fmt-check:
	$(CARGO) fmt --all --check

lint: install-lint
	python3 -m doctest .ci/dependencies.py .ci/reap.py
	.ci/dependencies.py
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Checks dependencies for known vulnerabilities if the database of RustSec can be fetched. If not, nothing is checked and the output says
# so, so that a machine that reaches only package registries can run the tests.
advisories:
	@if timeout 60 git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null; then \
		$(MAKE) --no-print-directory audit; \
	else \
		echo "Known vulnerabilities of dependencies are NOT CHECKED: the database of RustSec is out of reach" >&2; \
	fi

# Checks dependencies for known vulnerabilities, and once more by the rules that `lint` checks, with cargo-deny. Fails if the database
# cannot be fetched.
audit: install-build
	@cargo deny --version >/dev/null 2>&1 || $(CARGO) install --locked --debug cargo-deny
	$(CARGO) deny check

# Runs unit tests, protocol conversations, the simulator, and replays of the fuzz corpora.
unit:
	$(CARGO) test --workspace --exclude h2o-tests

# The same with its output at the end, so that it is not mixed with that of a target that runs at the same time.
unit-in-one-piece:
	@$(MAKE) --no-print-directory unit >target/unit.log 2>&1; status=$$?; cat target/unit.log; exit $$status

# Runs the real binary against clients of other projects. These tests mostly wait for programs and time limits, so more of them run at once
# than there are processors.
e2e:
	$(CARGO) build -p h2o
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} $(CARGO) test -p h2o-tests --tests
	python3 -m unittest discover bench
	tests/interop/run.py --clients aioquic,quic-go

# Tests the crate h2o-mruby with the libraries of newer Debian releases: mruby 3.3 and 4.
test-mruby: install-build
	@.ci/install dpkg-deb:dpkg
	set -e; for release in trixie sid; do \
		config=$$(.ci/mruby $$release); \
		MRUBY_CONFIG=$$config $(CARGO) test -p h2o-mruby --target-dir target/mruby; \
	done

# Tests the crate h2o-mruby with AddressSanitizer, which instruments the C code of the shim and checks all allocations. It keeps memory that
# was freed, so the test is left out that freed memory goes back to the system.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
HOST_VARIABLE = CARGO_TARGET_$(shell echo $(HOST) | tr 'a-z-' 'A-Z_')
sanitize-mruby: install-build
	CFLAGS='-fsanitize=address -fno-omit-frame-pointer -g' \
	$(HOST_VARIABLE)_RUSTFLAGS='-Clink-arg=-lasan' \
	$(HOST_VARIABLE)_RUNNER="env LD_PRELOAD=$$(cc -print-file-name=libasan.so)" \
	$(CARGO) test -p h2o-mruby --target $(HOST) --target-dir target/sanitize -- --skip the_memory_of_a_closed_vm

# Runs HTTP/3 in 25 cases with clients on four other stacks (tests/interop). `make test` leaves out quiche, which compiles BoringSSL, and
# the browser, which needs a machine that does little else.
interop: install-build install-test
	@.ci/install c++:g++ cmake:cmake /usr/share/doc/libclang-dev:libclang-dev
	@$(MAKE) --no-print-directory target/tools/quiche
	$(CARGO) build -p h2o
	tests/interop/run.py

target/tools/quiche: tests/clients/quiche/src/main.rs tests/clients/quiche/Cargo.toml tests/clients/quiche/Cargo.lock
	@mkdir -p $(@D)
	$(CARGO) build --locked --manifest-path tests/clients/quiche/Cargo.toml --target-dir target/quiche
	cp target/quiche/debug/h2o-quiche-client $@

# Writes docs/directives.md from the table of directives.
docs:
	H2O_REGENERATE_DOCS=1 $(CARGO) test -p h2o-server --test docs

bench: install-build install-bench
	$(CARGO) build --release -p h2o
	$(CARGO) build --release -p h2o-floor -p h3load
	bench/run.py

# Runs the daily subset of the comparison, with a build profile that takes a fraction of the time.
bench-quick: install-build install-bench
	$(CARGO) build --profile bench-quick -p h2o
	$(CARGO) build --profile bench-quick -p h2o-floor -p h3load
	bench/run.py --quick --h2o target/bench-quick/h2o

# Counts the instructions of single functions and compares them with the record. The load of the machine does not matter.
bench-micro: install-build
	@.ci/install valgrind:valgrind
	bench/micro.py

install-lint: install-build
	@.ci/install python3:python3

install-build:
	@.ci/install cc:gcc make:make openssl:openssl mruby-config:mruby /usr/include/mruby.h:libmruby-dev

install-test: install-build
	@.ci/install curl:curl wget:wget openssl:openssl python3:python3 chromium:chromium nghttp:nghttp2-client brotli:brotli zstd:zstd php-cgi:php-cgi /usr/sbin/php-fpm8.2:php-fpm \
		nginx:nginx-light go:golang-go redis-server:redis-server memcached:memcached start_server:libserver-starter-perl /usr/lib/python3/dist-packages/h2:python3-h2 \
		certbot:certbot caddy:caddy logrotate:logrotate systemd-analyze:systemd man:man-db /usr/share/zoneinfo/Asia/Kolkata:tzdata zsh:zsh fish:fish haproxy:haproxy gnutls-cli:gnutls-bin /usr/share/doc/python3-venv:python3-venv
	@$(MAKE) --no-print-directory --silent $(addprefix target/tools/,h2spec go-client go-backend grpc-check acme-ca names.so quic-go aioquic/bin/python3 prometheus/bin/python3)

# The HTTP/2 conformance test h2spec, with pinned versions of everything that it is built from. Debian has no package of it.
target/tools/h2spec: tests/clients/h2spec/go.mod tests/clients/h2spec/go.sum
	@mkdir -p $(@D)
	cd $(<D) && go build -mod=readonly -o $(CURDIR)/$@ github.com/summerwind/h2spec/cmd/h2spec
	@touch $@

# A server that cannot be installed is left out of the comparison, with a note in the report.
install-bench:
	@.ci/install python3:python3 h2load:nghttp2-client cc:gcc /usr/include/openssl/ssl.h:libssl-dev
	@for peer in nginx:nginx-light /usr/bin/h2o:h2o /usr/sbin/apache2:apache2-bin haproxy:haproxy caddy:caddy \
			/usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua; do \
		.ci/install $$peer || echo "left out: $${peer#*:}" >&2; \
	done

# A client and a backend made with Go's standard library.
target/tools/go-client target/tools/go-backend: target/tools/%: tests/clients/%/main.go tests/clients/%/go.mod
	@mkdir -p $(@D)
	cd $(<D) && go build -o $(CURDIR)/$@ .
	@touch $@

# A client of HTTP/3 made with quic-go, which needs a newer Go compiler than Debian has.
target/tools/quic-go: tests/clients/quic-go/main.go tests/clients/quic-go/go.mod tests/clients/quic-go/go.sum
	@mkdir -p $(@D)
	go=$$(.ci/go) && cd $(<D) && $$go build -mod=readonly -o $(CURDIR)/$@ .
	@touch $@

# A client of HTTP/3 made with aioquic, and Prometheus's own parser of metrics, with pinned versions of everything that they are built from.
target/tools/aioquic/bin/python3 target/tools/prometheus/bin/python3: target/tools/%/bin/python3: tests/clients/%/requirements.txt
	@mkdir -p target/tools
	python3 -m venv target/tools/$*
	target/tools/$*/bin/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

# A library that answers the look-ups of host names in tests.
target/tools/names.so: tests/clients/names.c
	@mkdir -p $(@D)
	cc -O -Wall -Wextra -shared -fPIC -o $@ $<

# A gRPC server and client, and a certificate authority for tests. Debian has no packages of them.
target/tools/grpc-check target/tools/acme-ca: target/tools/%: tests/clients/%/main.go tests/clients/%/go.mod tests/clients/%/go.sum
	@mkdir -p $(@D)
	cd $(<D) && go build -mod=readonly -o $(CURDIR)/$@ .
	@touch $@
