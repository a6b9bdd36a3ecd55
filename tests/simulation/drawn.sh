#!/usr/bin/env bash
# Simulates 500 seeds that nobody has chosen: drawn from the commit's hash, so that each commit tries others and every run
# of it the same. One that breaks a rule is reported, and fails.
# Usage: drawn.sh <simulate_control_plane>
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=${1:?usage: drawn.sh <simulate_control_plane>}
readonly count=500
if ! commit=$(git -C "$root" rev-parse HEAD 2>/dev/null); then
  echo "drawn seeds: none without a commit to draw from; the tests have run the fixed ones"
  exit 0
fi
first=$((0x${commit:0:12} % 1000000 * count + 1000001)) # beyond the fixed ones
echo "drawn seeds: $first-$((first + count - 1)), of commit ${commit:0:12}"
if ! "$program" --seeds "$first-$((first + count - 1))"; then
  echo "drawn seeds: some broke a rule, as said above; mend it, and name the seed in tests/simulation/simulation_test.cc"
  exit 1
fi
