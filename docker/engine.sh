#!/bin/bash
# Starts and stops a Docker engine of this checkout on a bare machine, for the tests in containers.
# It creates neither a bridge nor firewall rules, and pulls nothing from an image registry.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: docker/engine.sh start | stop | run COMMAND...

  start  install Debian's engine where it is missing, start it, and print the DOCKER_HOST to use;
         when an engine answers already, only print that one's
  stop   end the engine that start started; its images are kept for the next start
  run    start the engine, build the base image when it has none, run COMMAND with DOCKER_HOST set,
         and stop the engine; when no engine can be started, run COMMAND all the same

Needs root, and apt-get where something is missing. ENGINE_DIR is where the engine keeps its data,
socket and log (default: build/engine in this checkout). ENGINE_SECONDS limits the wait for its
first answer (default: 60).
TEXT
}

fail() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath -m "${ENGINE_DIR:-$here/../build/engine}")
socket=$folder/docker.sock
log=$folder/dockerd.log
# The kernel limits the length of a socket's path.
[ ${#socket} -lt 104 ] || fail "the path $socket is too long for a socket: set ENGINE_DIR" 2

answers() {
    command -v docker >/dev/null && timeout 10 docker ${1:+--host "$1"} version >/dev/null 2>&1
}

# Prints the process id of our engine while it runs. The id in the file may belong to another program now.
running() {
    local pid
    pid=$(cat "$folder/pid" 2>/dev/null) && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" |
        grep -qF -- "--data-root $folder/data " && echo "$pid"
}

install_missing() {
    local missing=()
    command -v dockerd >/dev/null || missing+=(docker.io)
    command -v docker-compose >/dev/null || missing+=(docker-compose)
    command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "install ${missing[*]}: there is no apt-get here"
    echo "installing: ${missing[*]}" >&2
    # The installation must not start a service, because only our own engine should run.
    apt-get update -qq >&2 &&
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        fail "apt-get could not install ${missing[*]}"
}

start() {
    if answers ''; then
        echo "${DOCKER_HOST:-unix:///var/run/docker.sock}"
        return
    fi
    if [ -n "$(running)" ] && answers "unix://$socket"; then
        echo "unix://$socket"
        return
    fi
    [ "$(id -u)" = 0 ] || fail "no Docker engine answers, and only root may start one"
    install_missing
    mkdir -p "$folder"
    rm -f "$folder/pid" "$socket"
    dockerd --bridge=none --iptables=false --host "unix://$socket" --data-root "$folder/data" \
        --exec-root "$folder/exec" --pidfile "$folder/pid" >"$log" 2>&1 </dev/null &
    local pid=$! deadline=$((SECONDS + ${ENGINE_SECONDS:-60}))
    until answers "unix://$socket"; do
        if ! kill -0 "$pid" 2>/dev/null; then
            fail "the Docker engine did not start: $(grep -E 'level=fatal|^failed' "$log" | tail -n 1 || tail -n 1 "$log") (whole log: $log)"
        elif [ $SECONDS -ge $deadline ]; then
            kill "$pid"
            fail "the Docker engine did not answer within ${ENGINE_SECONDS:-60} s (its log: $log)"
        fi
        sleep 0.2
    done
    echo "unix://$socket"
}

stop() {
    local pid place deadline=$((SECONDS + 30))
    pid=$(running) || return 0
    kill "$pid"
    while [ -n "$(running)" ]; do
        if [ $SECONDS -ge $deadline ]; then
            kill -9 "$pid" 2>/dev/null || true
            fail "the Docker engine (process $pid) did not end within 30 s of SIGTERM and was killed"
        fi
        sleep 0.2
    done
    # A folder that the engine leaves mounted could not be deleted.
    awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r |
        while read -r place; do umount "$place" || true; done
}

run() {
    local host was
    was=$(running) || was=''
    if host=$("$here/engine.sh" start); then
        [ -n "$was" ] || trap stop EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        export DOCKER_HOST=$host
        docker image inspect zkconsumer-base >/dev/null 2>&1 || "$here/build-base.sh" ||
            echo "without zkconsumer-base the image is built on the one that docker/Dockerfile names" >&2
    fi
    "$@"
}

case "${1:-}" in
    -h | --help) usage ;;
    start | stop) [ $# = 1 ] || fail "$1 takes no arguments: see --help" 2; "$1" ;;
    run) shift; [ $# -gt 0 ] || fail "run needs a command: see --help" 2; run "$@" ;;
    *) fail "unknown command ${1:-(none)}: see --help" 2 ;;
esac
