#!/usr/bin/env bash
# Packs what tests/device.sh needs on a machine with a GPU, where nothing can be installed: stripped programs, the
# libraries they load, the GPU libraries with their sources, a text to train on. The C and C++ libraries are that
# machine's own (Debian 12 or newer), CUDA's too. Fails above 48 MiB.
# Usage: bundle.sh BUILD FILE.tar.gz (BUILD: a build folder of this checkout)
set -euo pipefail
export LC_ALL=C.UTF-8
if [ $# -ne 2 ]; then
  sed -n '/^# Usage/s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
file=$2
readonly max_mib=48
readonly left_out='/(ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so'
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
bundle=$stage/geopipe
mkdir -p "$bundle/bin" "$bundle/lib/ucx" "$bundle/src"

programs=(geopipectl geopipe-coordinator geopipe-agent geopipe-worker device_check libgeopipe_cuda_emulated.so)
for program in "${programs[@]}"; do
  strip -o "$bundle/bin/$program" "$build/bin/$program"
done
if [ -f "$build/bin/libgeopipe_cuda.so" ]; then
  strip -o "$bundle/bin/libgeopipe_cuda.so" "$build/bin/libgeopipe_cuda.so"
else
  echo "bundle: without libgeopipe_cuda.so, which this build has no CUDA toolkit for; device.sh builds it, by nvcc"
fi

# libraries_of <file>...: paths of those they load, but for the machine's own.
libraries_of() {
  ldd "$@" | awk '/not found/ {print "error: " $1 " is not installed here" >"/dev/stderr"; exit 1}
    $2 == "=>" {print $3}' | grep -vE "$left_out" | sort -u
}
# UCX opens its modules from the folder ucx beside itself.
ucx=$(libraries_of "$build/bin/geopipe-worker" | grep '/libucs\.so')
ucx=$(dirname "$(readlink -f "$ucx")")/ucx
cp -L "$ucx"/*.so.0 "$bundle/lib/ucx"
libraries=$(libraries_of "${programs[@]/#/$build/bin/}" "$ucx"/*.so.0 | grep -vF "$ucx/")
xargs cp -L -t "$bundle/lib" <<<"$libraries"
strip --strip-unneeded "$bundle"/lib/*.so* "$bundle"/lib/ucx/*

cd "$root"
cp --parents runtime/gpu/port/*.h runtime/gpu/kernels/*.{h,cc} runtime/gpu/cuda/*.{h,cc} "$bundle/src"
cp LICENSE tests/device.sh tests/device/torch_block.py "$bundle"
{
  echo "commit $(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
  echo "packed $(date -u '+%Y-%m-%d %H:%M') UTC"
  sed -n 's/^GEOPIPE_KERNELS_SHA256:INTERNAL=/kernels /p' "$build/CMakeCache.txt"
} >"$bundle/VERSION"

mkdir -p "$(dirname "$file")"
tar -C "$stage" --owner=0 --group=0 --sort=name -c geopipe | gzip >"$file"
bytes=$(stat -c %s "$file")
printf 'bundle: %s, %d.%d MiB of at most %d: %s\n' "$file" $((bytes >> 20)) $(((bytes >> 10) % 1024 * 10 / 1024)) \
  "$max_mib" "$(head -n 1 "$bundle/VERSION")"
if [ "$bytes" -gt $((max_mib << 20)) ]; then
  rm "$file"
  echo "error: the bundle is larger than $max_mib MiB; leave something out (tests/device/bundle.sh)" >&2
  exit 1
fi
