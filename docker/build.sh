#!/bin/bash
# Builds the image. Wheels and jars are collected in a build context first, so the build itself needs
# no network if the base image has Java and Python.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: docker/build.sh [--base IMAGE] [--tag IMAGE]

  --base IMAGE  base image; by default zkconsumer-base when the engine has it (docker/build-base.sh
                makes it), otherwise the one that docker/Dockerfile names
  --tag IMAGE   name of the image                                            [default: zkconsumer]

PYTHON names the Python that fetches wheels and jars: by default .venv/bin/python, which
`make setup` makes.
TEXT
}

fail() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

base='' tag=zkconsumer
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit ;;
        --base | --tag)
            [ $# -ge 2 ] || fail "$1 needs a value" 2
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) fail "unknown argument $1: see --help" 2 ;;
    esac
done

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=${PYTHON:-$root/.venv/bin/python}
"$python" -c 'import pip, zkconsumer' 2>/dev/null || fail "$python has no zkconsumer: run make setup first"
docker version >/dev/null 2>&1 || fail "no Docker engine answers: start it, or set DOCKER_HOST"
if [ -z "$base" ] && docker image inspect zkconsumer-base >/dev/null 2>&1; then
    base=zkconsumer-base
fi
from=${base:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$here/Dockerfile")}
if ! docker image inspect "$from" >/dev/null 2>&1 && ! docker pull --quiet "$from" >/dev/null; then
    fail "the base image $from cannot be fetched: build one with docker/build-base.sh, or name one with --base"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/wheels" "$work/jars"

# Wheels for the Python version in the image, which may differ from the machine's.
inside=3.11
if [ -n "$base" ]; then
    inside=$(docker run --rm --network none --entrypoint python3 "$base" \
        -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || inside=3.11
fi
arch=$(docker version --format '{{.Server.Arch}}' | sed 's/^amd64$/x86_64/; s/^arm64$/aarch64/')
ZKCONSUMER_COMPILE=no "$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheels" "$root"
"$python" -m pip download --quiet --only-binary=:all: --python-version "$inside" \
    --platform "manylinux2014_$arch" --platform "manylinux_2_17_$arch" --platform "manylinux_2_28_$arch" \
    --dest "$work/wheels" "$(echo "$work"/wheels/*.whl)[cli,codecs]"

"$python" -m zkconsumer.servers
"$python" - "$work/jars" <<'PY'
import shutil, sys
from pathlib import Path
from zkconsumer.servers import KAFKA_LINES, fetch_jars
from zkconsumer.servers.jars import KRAFT_LINES

for line in sorted(set(KAFKA_LINES) - KRAFT_LINES):
    jars = fetch_jars(line)
    shutil.copytree(jars, Path(sys.argv[1]) / jars.name)
PY

cp "$here"/{Dockerfile,kafka-jvm,log4j.properties} "$work"
docker build --quiet --network host ${base:+--build-arg BASE_IMAGE="$base"} --tag "$tag" "$work" >/dev/null
# Remove the image that this build replaced, and the stage that is not part of the image.
docker image prune --force --filter label=zkconsumer.image >/dev/null
docker image inspect --format '{{.Size}}' "$tag" |
    awk -v tag="$tag" '{ printf "built %s, %d MB\n", tag, $1 / 1e6 }' >&2
