#!/usr/bin/env bash
# Prints the kernels' registers and spills as docs/gpu.md's table. Arguments: the compiler and its options, as the build
# gives them (`cmake --build build/release --target kernel_table`); in the kernels' folder.
set -euo pipefail

for source in *.cc; do
  if [ "$source" != fibers.cc ]; then
    "$@" -Xptxas -v -c "$source" -o /dev/null 2>&1
  fi
done | c++filt | awk -v toolkit="$("$1" --version | sed -n 's/^Cuda compilation tools, //p')" -v day="$(date -u +%F)" '
  /Compiling entry function/ {
    split($0, quoted, "\047")
    kernel = quoted[2]
    architecture = quoted[4]
    gsub(/geopipe::gpu::|\(anonymous namespace\)::|^void /, "", kernel)
    sub(/\(.*/, "", kernel)
    gsub(/ >/, ">", kernel)
    if (!(kernel in spilled)) {
      kernels[++count] = kernel
    }
  }
  /bytes spill stores/ {
    spilled[kernel] += $5 + $9
  }
  /Used [0-9]+ registers/ {
    registers[kernel, architecture] = $5
  }
  END {
    if (count == 0) {
      print "no kernel was compiled" > "/dev/stderr"
      exit 1
    }
    printf "Toolkit %s, %s.\n\n", toolkit, day
    print "| kernel | registers, sm_80 | registers, sm_90a | spilled bytes |"
    print "|---|---|---|---|"
    for (i = 1; i <= count; ++i) {
      kernel = kernels[i]
      printf "| `%s` | %d | %d | %d |\n", kernel, registers[kernel, "sm_80"], registers[kernel, "sm_90a"], spilled[kernel]
    }
  }'
