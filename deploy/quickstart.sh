#!/usr/bin/env bash
# Takes a fresh clone on Debian 12 to a training run: installs what is missing, builds the programs, and trains
# deploy/examples/tiny.yaml over three rehearsed datacenters (20 ms one way, 1 Gbps) on this machine. Further arguments
# go to `geopipectl playground` (for example --iterations 20). Safe to run again.
set -euo pipefail
export LC_ALL=C.UTF-8
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/deploy/install-packages.sh" build

# The same build folder as tests/run.sh, so that neither builds what the other has built. The tests themselves are left
# out, unless that folder already has them.
without_tests=()
if [ ! -f "$root/build/release/CMakeCache.txt" ]; then
  without_tests=(-DGEOPIPE_BUILD_TESTS=OFF)
fi
"$root/deploy/build.sh" release "${without_tests[@]}" -- geopipe-coordinator geopipe-agent geopipe-worker geopipe-tokenize geopipectl

echo "==> playground: training deploy/examples/tiny.yaml over three sites"
exec "$root/build/release/bin/geopipectl" playground --sites 3 --link latency=20ms,bandwidth=1Gbps \
  --job "$root/deploy/examples/tiny.yaml" --output "$root/build" "$@"
