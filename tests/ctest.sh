#!/usr/bin/env bash
# Runs a built preset's tests and ends with one line, `N passed, N failed` (before it `N skipped` when some were).
# Unit tests, long ones and runs run two at a time, paced ones three; the others start processes and measure time, so they
# run alone.
# Exits non-zero when a test failed or none ran.
# Usage: ctest.sh <preset> [--unit] [ctest argument]... (presets: release, debug, asan, tsan)
set -euo pipefail
export LC_ALL=C.UTF-8
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1:-} in
  --help | -h) sed -n '2,/^set/s/^# //p' "${BASH_SOURCE[0]}" && exit 0 ;;
  "" | -*) sed -n '/^# Usage/s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
preset=$1
shift
only_unit=false
if [ "${1:-}" = --unit ]; then
  only_unit=true
  shift
fi
cd "$root"
build="$root/build/$preset"
passed=0 failed=0 skipped=0

# run_group <name> <ctest argument>...: adds one ctest run to the counts, from the results file it writes.
run_group() {
  local results="$build/results-$1.xml" status=0 total not_failed
  shift
  rm -f "$results"
  ctest --preset "$preset" --no-tests=ignore --output-on-failure --output-junit "$results" "$@" </dev/null || status=$?
  local ran=0 bad=0 skip=0
  if [ -f "$results" ]; then
    ran=$(grep -c '<testcase .*status="run"' "$results" || true)
    # Counts by exit code; a program that is not there is "notrun" too, and has failed.
    skip=$(grep -cE '<skipped message="SKIP_RETURN_CODE=|<testcase .*status="disabled"' "$results" || true)
    total=$(grep -c '<testcase ' "$results" || true)
    not_failed=$((ran + skip))
    bad=$((total - not_failed))
  fi
  if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
    echo "error: ctest ended with status $status without a failed test of its own: counted as one failure" >&2
    bad=1
  fi
  passed=$((passed + ran)) failed=$((failed + bad)) skipped=$((skipped + skip))
}

if $only_unit; then
  run_group unit -L unit -j 2 "$@"
else
  run_group unit -L 'unit|long' -j 2 "$@"
  run_group paced -L paced -j 3 "$@"
  run_group runs -L runs -j 2 "$@"
  run_group other -LE 'unit|long|paced|runs' -j 1 "$@"
fi

if [ "$skipped" -gt 0 ]; then
  echo "$skipped skipped"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
