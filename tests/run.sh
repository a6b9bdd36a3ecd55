#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs all its tests. Safe to run again; works on a bare Debian
# 12 as root or with sudo, from any folder. Last line: `N passed, N failed`; exits non-zero when a test failed or none ran.
# Usage: run.sh [ctest argument]... (for example -R optimizer)
set -euo pipefail
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set/s/^# //p' "${BASH_SOURCE[0]}"
  exit 0
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/deploy/install-packages.sh" build test
"$root/deploy/build.sh" release -DGEOPIPE_BUILD_TESTS=ON
echo "==> tests: running the release preset's tests"
"$root/tests/ctest.sh" release "$@"
