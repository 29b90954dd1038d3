#!/usr/bin/env bash
# Compiles the stand-in: bash build.sh OUT_DIR
# The compiler is $CXX, or the first of c++, g++ and clang++ that there is.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?usage: build.sh OUT_DIR}"
out=$(cd "$1" && pwd)

for name in ${CXX:-c++ g++ clang++}; do
    if compiler=$(command -v "$name"); then break; fi
done
[ -n "$compiler" ] || { echo "no C++ compiler: there is none of ${CXX:-c++, g++ and clang++}" >&2; exit 1; }

# Products and sums are rounded one by one, as in the PTX.
flags=(-std=c++17 -O2 -ffp-contract=off -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wno-unknown-pragmas -DSLUICE_ON_CPU)
if "$compiler" -march=native -x c++ -fsyntax-only /dev/null 2>/dev/null; then flags+=(-march=native); fi

compile() { "$compiler" "${flags[@]}" "$@"; }
# They find each other in their own folder, and are never unloaded: their threads go on.
library() {
    local name=$1
    shift
    compile -shared -Wl,-soname,"$name" -Wl,-rpath,'$ORIGIN' -Wl,-z,nodelete -o "$out/$name" "$@"
}

cd "$here"
kernels=()
for file in ../kernels/*.cu; do kernels+=(-include "$file"); done

compile "${kernels[@]}" -c registry.cpp -o "$out/registry.o"
compile -c blocks.cpp -o "$out/blocks.o"
library libcuda.so.1 driver.cpp memory.cpp streams.cpp ptx.cpp "$out/registry.o" "$out/blocks.o"
library libcublas.so.12 cublas.cpp "$out/libcuda.so.1"
library libcublas.so.11 -DVERSION=110902 cublas.cpp "$out/libcuda.so.1"
library libnvidia-ml.so.1 nvml.cpp "$out/libcuda.so.1"
compile -x c++ kernel_test.cu -x none "$out/blocks.o" -o "$out/kernel_test"
compile library_test.cpp -Wl,-rpath,'$ORIGIN' "$out/libcuda.so.1" "$out/libcublas.so.12" -o "$out/library_test"
rm "$out/registry.o" "$out/blocks.o"
