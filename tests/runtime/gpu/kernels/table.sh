#!/usr/bin/env bash
# Prints the kernels' registers and spills as docs/gpu.md's table. Arguments: the compiler and its options, as the build
# gives them (`cmake --build build/release --target kernel_table`); in the kernels' folder.
set -euo pipefail

compile() {
  for source in *.cc; do
    if [ "$source" != fibers.cc ]; then
      "$@" -Xptxas -v -c "$source" -o /dev/null 2>&1
    fi
  done
}

echo "$("$1" --version | sed -n 's/^Cuda compilation tools, //p'), $(date -u +%F):"
echo
echo "| kernel | architecture | registers | spilled bytes |"
echo "|---|---|---|---|"
compile "$@" | c++filt | sed -n -E \
  -e "s/^ptxas info *: Compiling entry function '(void )?([^(]*)\(.*' for '(.*)'$/name \2 \3/p" \
  -e "s/^ptxas info *: Compiling entry function '(void )?(.*)' for '(.*)'$/name \2 \3/p" \
  -e 's/^ *[0-9]+ bytes stack frame, ([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads$/spills \1 \2/p' \
  -e 's/^ptxas info *: Used ([0-9]+) registers.*/registers \1/p'
