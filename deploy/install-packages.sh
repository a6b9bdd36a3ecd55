#!/usr/bin/env bash
# Installs those Debian packages of the named groups of packages.txt that are missing, as root or through sudo.
# Asks no questions, does nothing (and needs no network) when all are there.
# Usage: install-packages.sh build|test|check|bench...
set -euo pipefail
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ $# -eq 0 ]; then
  echo "usage: install-packages.sh build|test|check|bench..." >&2
  exit 2
fi
if ! command -v dpkg-query >/dev/null; then
  echo "error: dpkg-query not found: this script knows Debian 12 only; install what deploy/packages.txt lists and build with CMake" >&2
  exit 1
fi

wanted=()
while read -r group package _; do
  for chosen in "$@"; do
    if [ "$group" = "$chosen" ]; then
      wanted+=("$package")
    fi
  done
done <"$here/packages.txt"

missing=()
for package in "${wanted[@]}"; do
  # shellcheck disable=SC2016  # ${Status} is dpkg-query's
  if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "==> packages: all ${#wanted[@]} of group(s) '$*' are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error: missing packages: ${missing[*]}; run this as root, or install sudo" >&2
    exit 1
  fi
  as_root=(sudo env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8)
fi
echo "==> packages: installing ${missing[*]}"
"${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=120 update </dev/null
"${as_root[@]}" apt-get -q -y -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 --no-install-recommends install "${missing[@]}" </dev/null
