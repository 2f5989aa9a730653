#!/bin/bash
# Builds a base image (Debian, Java 17, Python) from Debian packages, without any image registry.
# Needs root, mmdebstrap and a running engine.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: docker/build-base.sh [--suite SUITE] [--mirror URL] [--tag IMAGE]

  --suite SUITE  Debian release to build from                 [default: bookworm]
  --mirror URL   where to get its packages; without it, where this machine's apt gets them
  --tag IMAGE    name of the image                            [default: zkconsumer-base]

SOURCE_DATE_EPOCH (seconds) is the newest time stamp of a file inside; 0 by default. With the same
packages the files are the same, but for the dates within Java's certificate store; a --mirror that
serves one day's state pins the packages.
TEXT
}

fail() {
    echo "error: $1" >&2
    exit "${2:-1}"
}

suite=bookworm mirror='' tag=zkconsumer-base
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit ;;
        --suite | --mirror | --tag)
            [ $# -ge 2 ] || fail "$1 needs a value" 2
            printf -v "${1#--}" %s "$2"
            shift 2
            ;;
        *) fail "unknown argument $1: see --help" 2 ;;
    esac
done

[ "$(id -u)" = 0 ] || fail "run this as root"
command -v mmdebstrap >/dev/null || fail "mmdebstrap was not found: apt install mmdebstrap"
docker version >/dev/null 2>&1 || fail "no Docker engine answers: start it, or set DOCKER_HOST"

if [ -n "$mirror" ]; then
    sources="deb $mirror $suite main"
else
    # The sources that apt itself uses for this release, with updates and security fixes.
    sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' \
        'Identifier: Packages' |
        sed -nE "s/^(deb [^ ]+ $suite(-updates|-security)? main) Debian\$/\1/p" | sort -u)
    [ -n "$sources" ] || fail "apt on this machine knows no Debian $suite: apt-get update, or name a --mirror"
fi

# Java 17 if the release has it, otherwise the release's default version.
java=openjdk-17-jre-headless
[ "$suite" = bookworm ] || java=default-jre-headless

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
# Java's update-alternatives needs the folder for manual pages, although it stays empty.
if ! mmdebstrap --variant=minbase --include="$java,python3,python3-venv" \
    --essential-hook='mkdir -p "$1"/usr/share/man/man1' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='rm -rf "$1"/var/log/* "$1"/var/cache/ldconfig/aux-cache' \
    --customize-hook='find "$1"/usr -name __pycache__ -prune -exec rm -rf {} +' \
    "$suite" "$work/base.tar" - <<<"$sources" >"$work/log" 2>&1; then
    grep -E '^(E|W|dpkg: error.*|update-alternatives: error.*): ' "$work/log" >&2 || tail -n 20 "$work/log" >&2
    fail "mmdebstrap could not build the base"
fi
docker import --message "Debian $suite, Java, Python" --change 'ENV LANG=C.UTF-8' \
    "$work/base.tar" "$tag" >/dev/null
docker image inspect --format '{{.Size}}' "$tag" |
    awk -v tag="$tag" '{ printf "built %s, %d MB\n", tag, $1 / 1e6 }' >&2
