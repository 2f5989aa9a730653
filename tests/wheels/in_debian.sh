#!/bin/sh
# tests/wheels/in_debian.sh SUITE VERSION: the tests of compiled wheels with a Python of a later Debian, which is
# unpacked into build/debian-SUITE (600 MB, once). As root, with debootstrap. The jars of the servers are copied there.
set -eu
suite=$1 python=python$2
root=$PWD/build/debian-$suite
if ! test -x "$root/usr/bin/$python"; then
    rm -rf "$root"
    mkdir -p build
    debootstrap --variant=minbase \
        --include="$python,$python-venv,$python-dev,gcc,libc6-dev,ca-certificates,openjdk-21-jre-headless,maven,procps" \
        "$suite" "$root" http://deb.debian.org/debian /usr/share/debootstrap/scripts/sid
fi
test -d "$root/proc/self" || mount -t proc proc "$root/proc" # Java and the tests read it
trap 'umount "$root/proc"' EXIT
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    if test -e "$file"; then cp "$file" "$root$file"; fi
done
rm -rf "$root/src"
mkdir -p "$root/src" "$root/root/.cache"
git archive HEAD | tar -x -C "$root/src"
cp -ru "${XDG_CACHE_HOME:-$HOME/.cache}/zkconsumer" "$root/root/.cache/"
chroot "$root" env -u JAVA_HOME -u XDG_CACHE_HOME -u PIP_FIND_LINKS HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    sh -euc "cd /src
test -x /root/env/bin/python || $python -m venv /root/env
/root/env/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
ZKCONSUMER_COMPILE=no /root/env/bin/python -m pip install --quiet --editable '.[cli]' auditwheel \
    pytest pytest-rerunfailures pytest-timeout pytest-xdist
/root/env/bin/python -m pytest tests/wheels/test_wheels.py -k 'compiled or quick'"
