#!/usr/bin/env bash
# Configures and builds one preset with as many jobs as processors and memory bear. A target of the tests or benches turns
# their building on.
# Usage: build.sh <preset> [configure argument]... [-- ninja target...]
set -euo pipefail
export LC_ALL=C.UTF-8
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage='usage: build.sh <preset> [configure argument]... [-- ninja target...]
presets: release, debug, asan, tsan'
case ${1:-} in
  --help | -h) echo "$usage" && exit 0 ;;
  "" | -*) echo "$usage" >&2 && exit 2 ;;
esac
preset=$1
shift
configure=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  configure+=("$1")
  shift
done
if [ $# -gt 0 ]; then
  shift
fi
for target in "$@"; do
  case $target in
    test_* | unit_tests* | simulate_* | device*) configure+=(-DGEOPIPE_BUILD_TESTS=ON) ;;
    benches | *_bench | relay_federation) configure+=(-DGEOPIPE_BUILD_TESTS=ON -DGEOPIPE_BUILD_BENCH=ON) ;;
  esac
done

# A translation unit that includes gRPC takes about 1 GiB to compile, twice that under a sanitizer.
available_mib=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
jobs=$((available_mib / 1500))
processors=$(nproc)
if [ "$jobs" -gt "$processors" ]; then jobs=$processors; fi
if [ "$jobs" -lt 1 ]; then jobs=1; fi

# CMake remembers the folder it was configured in; a tree that has moved starts afresh.
build="$root/build/$preset"
if [ -f "$build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$build/CMakeCache.txt"; then
  echo "==> build: $build belongs to another source folder; building it anew"
  rm -rf "$build"
fi
cd "$root"
echo "==> build: configuring preset '$preset' in build/$preset"
cmake --preset "$preset" "${configure[@]}" </dev/null
echo "==> build: compiling with $jobs job(s)"
NINJA_STATUS='[%f/%t %es] ' ninja -C "$build" -j "$jobs" "$@" </dev/null
