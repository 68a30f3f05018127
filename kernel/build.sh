#!/bin/sh
# Compiles a kernel library:                             build.sh host|cuda OUTDIR [ARCHS]
#   ARCHS, of cuda only: "120a" (the default), "120a 90a". What NVCC_APPEND_FLAGS and NVCC_PREPEND_FLAGS add, the
#   library says of itself beside its compiler.
# Prints the source hash that a library says of itself:  build.sh hash host|cuda
# Needs g++ (CXX) or nvcc (NVCC) and coreutils, nothing else: make and the Dockerfile both call it.
# The same sources and compiler give the same bytes in any folder: every path on a command line is relative
# to this folder, no build id is written, symbols are stripped. What compiled a library is noted beside it
# (.toolchain), for kernel/hashes.py.
set -eu

fail() { echo "kdtree: $1: $2. Fix: $3" >&2; exit "${4:-64}"; }
need() { command -v "$1" >/dev/null || fail "no $2 compiler" "$1 is not on PATH" "install $3" 69; }

usage='usage: kernel/build.sh host|cuda OUTDIR [ARCHS], or hash host|cuda'
{ [ $# -ge 2 ] && [ $# -le 3 ]; } || fail "wrong number of arguments" "$#" "$usage"

# sha256 over the names and contents of what the library host or cuda is made of.
source_hash() {
  find include common "$1" -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' -o -name '*.map' \) -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}

# note COMPILER: what the host's side of a library depends on, a line each. Of the C library its version alone: its
# packages change with every security update, and the few bytes of them that are linked in hardly ever do.
note() {
  "$1" --version | head -n 1
  ld --version | head -n 1
  getconf GNU_LIBC_VERSION
}

build_host() {
  rm -f "$out"/libkdtree_verify_host.* # an old one shall not pass for what fails to compile
  "$cxx" -std=c++17 -O3 -ffp-contract=off -fPIC -shared -pthread -fvisibility=hidden \
    -Wall -Wextra -Werror -Iinclude -I. \
    -DKDTREE_SOURCE_HASH="\"$(source_hash host)\"" \
    -DKDTREE_COMPILER="\"g++ $("$cxx" -dumpfullversion)\"" \
    -Wl,--build-id=none,-s,-z,defs,--version-script=common/exports.map \
    common/*.cpp host/*.cpp -o "$out/libkdtree_verify_host.so"
  note "$cxx" >"$out/libkdtree_verify_host.toolchain"
}

build_cuda() {
  gencode='' names=''
  for arch in ${1:-120a}; do
    gencode="$gencode -gencode arch=compute_$arch,code=sm_$arch"
    names="${names:+$names,}sm_$arch"
  done
  # ptxas tells registers and spills, for kernel/report.py; a spill is an error, as every warning is.
  log="$out/libkdtree_verify_cuda.ptxas"
  flags="${NVCC_PREPEND_FLAGS:+ NVCC_PREPEND_FLAGS}${NVCC_APPEND_FLAGS:+ NVCC_APPEND_FLAGS}"
  flags=${flags:+ with$flags}
  rm -f "$out"/libkdtree_verify_cuda.*
  # shellcheck disable=SC2086  # gencode is a list of words
  "$nvcc" -std=c++17 -O3 $gencode -cudart static -nodlink -shared -Iinclude -I. \
    -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -Xptxas -v,-warn-spills -Werror all-warnings \
    -DKDTREE_SOURCE_HASH="\"$(source_hash cuda)\"" \
    -DKDTREE_COMPILER="\"nvcc $("$nvcc" --version | sed -n 's/.*, V\([0-9.]*\)$/\1/p')$flags\"" \
    -DKDTREE_ARCHS="\"$names\"" \
    -Xlinker -s,--build-id=none,-z,defs,--version-script=common/exports.map \
    common/*.cpp cuda/*.cu -o "$out/libkdtree_verify_cuda.so" 2>"$log" || { cat "$log" >&2; exit 1; }
  {
    note "${NVCC_CCBIN:-g++}"
    echo "$("$nvcc" --version | sed -n 's/.*, V\([0-9.]*\)$/nvcc \1/p; s/^Build //p' | paste -s -d ' ' -)$flags"
    echo "for $names"
  } >"$out/libkdtree_verify_cuda.toolchain"
}

# Everything that can be refused is, before anything is written.
cxx=${CXX:-g++} nvcc=${NVCC:-nvcc}
library=$1
[ "$1" != hash ] || library=$2
case $library in host | cuda) ;; *) fail "unknown library" "$library" "$usage" ;; esac
if [ -n "${3-}" ]; then
  expr "x$3" : '\(x[0-9]\{1,\}a\{0,1\}\( [0-9]\{1,\}a\{0,1\}\)*\)$' >/dev/null ||
    fail "no architectures for nvcc" "$(printf %s "$3" | tr '\n' ' ')" 'name them as in "120a 90a"'
fi
case $1 in
  host) need "$cxx" C++ 'g++, or set CXX' ;;
  cuda) need "$nvcc" CUDA 'CUDA 13.0, or set NVCC' ;;
esac
if [ "$1" != hash ]; then
  mkdir -p "$2"
  out=$(cd "$2" && pwd)
fi
cd "$(dirname "$0")"
case $1 in
  host) build_host ;;
  cuda) build_cuda "${3-}" ;;
  hash) source_hash "$2" ;;
esac
