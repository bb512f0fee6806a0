#!/bin/sh
# Installs what kvarnd needs on Debian 12. Safe to run again: asks nothing, and does nothing when all is there.
#
#   deploy/install-deps.sh            what the build and the quickstart need
#   deploy/install-deps.sh --tests    the same, and what tests/run.sh needs
#   deploy/install-deps.sh --cuda     the same as the first, and a CUDA compiler for the GPU kernels: NVIDIA's wheels
#                                     from PyPI in .venv/cuda (300 MB), where CMake finds it. Not needed where nvcc
#                                     13.0 or later is installed already. KVARN_CUDA_VENV names another folder;
#                                     CMake then wants -DKVARN_NVCC=FOLDER/bin/nvcc
set -eu

usage() {
    sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'
}

build="gcc libc6-dev cmake ninja-build pkg-config
       libuv1-dev libprotobuf-c-dev protobuf-c-compiler libssl-dev libjansson-dev libisal-dev libyaml-dev"
tests="g++ git clang clang-format clang-tidy libclang-rt-14-dev libcmocka-dev libopenblas-dev python3 python3-numpy procps"

# one version of all of them, the oldest that has everything; its code runs on later drivers
wheels="nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
        nvidia-cuda-cccl==13.0.85"

# The compiler in a virtual environment of its own; bin/nvcc there is a script, since nvcc looks for its parts
# beside the name that it is called by.
install_cuda() {
    venv=${KVARN_CUDA_VENV:-$(cd "$(dirname "$0")/.." && pwd)/.venv/cuda}
    if [ -x "$venv/bin/nvcc" ] && "$venv/bin/nvcc" --version >/dev/null 2>&1; then
        echo "install-deps: CUDA compiler is there: $venv/bin/nvcc"
        return
    fi
    echo "install-deps: installing a CUDA compiler into $venv"
    /usr/bin/python3 -m venv "$venv"
    # shellcheck disable=SC2086
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps $wheels
    nvcc=$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$nvcc" >"$venv/bin/nvcc"
    chmod +x "$venv/bin/nvcc"
    "$venv/bin/nvcc" --version >/dev/null
    echo "install-deps: CUDA compiler is there: $venv/bin/nvcc"
}

packages=$build
cuda=
case "${1-}" in
'') ;;
--tests) packages="$build $tests" ;;
--cuda) packages="$build g++ python3 python3-venv" cuda=1 ;;
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
    [ -z "$cuda" ] || install_cuda
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
[ -z "$cuda" ] || install_cuda
