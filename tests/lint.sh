#!/usr/bin/env bash
# Checks the sources: `lint.sh format` their layout and `lint.sh words` how their comments open (seconds each), `lint.sh
# tidy [FILE...]` by static analysis these sources (about 10 s each) or the whole tree (half an hour on two processors).
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Compile commands without precompiled headers, and the generated headers. $1: whether sources are joined a few at a
# time, so that their headers are parsed once.
configure() {
  cmake --preset debug -B build/tidy -DGEOPIPE_PRECOMPILE=OFF -DGEOPIPE_UNITY="$1" >/dev/null
  ninja -C build/tidy generated_headers >/dev/null
  install -D -m 644 tests/.clang-tidy build/tidy/tests/.clang-tidy  # also for the joined sources of tests
}

case ${1:-} in
  format)
    find optimizer proto runtime agent coordinator tests \( -name '*.h' -o -name '*.cc' \) -print0 | sort -z |
      xargs -0 clang-format --dry-run -Werror
    ;;
  words)
    find optimizer proto runtime agent coordinator tests \( -name '*.h' -o -name '*.cc' -o -name '*.proto' \) -print0 |
      sort -z | xargs -0 awk -f tests/words.awk || {
      echo "These comments open without a subject; tests/words.awk has the rule." >&2
      exit 1
    }
    ;;
  tidy)
    shift
    clang_tidy=(clang-tidy --quiet -p build/tidy --extra-arg=-Wno-unknown-warning-option)  # g++ has more warnings
    if [ $# -gt 0 ]; then
      configure OFF
      printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" "${clang_tidy[@]}"
    else
      configure ON
      sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' build/tidy/compile_commands.json | grep -v '/generated/\|/precompiled' |
        tr '\n' '\0' | xargs -0 -n 1 -P "$(nproc)" "${clang_tidy[@]}" \
          --checks=-bugprone-suspicious-include \
          --header-filter='/(optimizer|runtime|agent|coordinator|proto/wire|tests)/.*\.(h|cc)$'
    fi
    ;;
  *)
    echo "usage: tests/lint.sh format | words | tidy [FILE...]" >&2
    exit 2
    ;;
esac
