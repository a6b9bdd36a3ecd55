#!/usr/bin/env bash
# Layout and static analysis of the sources: `lint.sh format` (seconds) and `lint.sh tidy [FILE...]` (about 10 s a file;
# all product sources when no file is named).
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  format)
    find optimizer proto runtime agent coordinator tests \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z |
      xargs -0 clang-format --dry-run -Werror
    ;;
  tidy)
    shift
    # Compile commands a source each, with neither precompiled headers nor sources joined, and the generated headers.
    cmake --preset debug -B build/tidy -DGEOPIPE_PRECOMPILE=OFF -DGEOPIPE_UNITY=OFF >/dev/null
    ninja -C build/tidy generated_headers >/dev/null
    if [ $# -gt 0 ]; then
      printf '%s\0' "$@"
    else
      find optimizer proto runtime agent coordinator -name '*.cc' -print0 | sort -z
    fi | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/tidy
    ;;
  *)
    echo "usage: tests/lint.sh format | tidy [FILE...]" >&2
    exit 2
    ;;
esac
