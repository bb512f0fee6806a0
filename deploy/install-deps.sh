#!/bin/sh
# Installs what kvarnd needs on Debian 12. Safe to run again: asks nothing, and does nothing when all is there.
#
#   deploy/install-deps.sh            what the build and the quickstart need
#   deploy/install-deps.sh --tests    the same, and what tests/run.sh needs
set -eu

usage() {
    sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'
}

build="gcc libc6-dev cmake ninja-build pkg-config
       libuv1-dev libprotobuf-c-dev protobuf-c-compiler libssl-dev libjansson-dev libisal-dev libyaml-dev"
tests="g++ git clang clang-format clang-tidy libclang-rt-14-dev libcmocka-dev libopenblas-dev python3 python3-numpy procps"

packages=$build
case "${1-}" in
'') ;;
--tests) packages="$build $tests" ;;
-h | --help) usage; exit 0 ;;
*)
    echo "install-deps.sh: unknown option '$1'; see --help" >&2
    exit 2
    ;;
esac

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "install-deps: everything is there"
    exit 0
fi

echo "install-deps: installing$missing"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install-deps: not root and no sudo here; as root run: apt-get install$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086
$as_root apt-get install -y -qq --no-install-recommends $missing </dev/null >/dev/null
echo "install-deps: done"
