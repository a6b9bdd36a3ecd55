#!/usr/bin/env bash
# Proves the GPU path on this machine in minutes. Runs from the unpacked bundle (target device-bundle), which needs
# NVIDIA's driver and CUDA's libraries and nothing else, or from a checkout with build/release. Touches no clocks and no
# modes of the GPU. Every phase prints one line and leaves its log and tables in the folder of results; last comes
# gpu.md there, a section for docs/gpu.md. Exits with 1 when one of the phases 0 to 4 failed.
# Usage: device.sh [--emulated] [--budget SECONDS] [--phases LIST] [--out DIR]
#   --emulated        on processors, over the emulated GPU: needs no GPU, and shows no speed
#   --budget SECONDS  for all phases together, which share it as they need it (470)
#   --phases LIST     numbers with commas between them (0,1,2,3,4,5,6,7)
#   --out DIR         folder of results ($OUT, or else device-results here; of a checkout, build/device-results)
# Phases:
#   0 versions   card, driver, clocks, libraries; every program finds what it loads
#   1 kernels    kernels and products against the cpu backend
#   2 training   losses against the cpu backend's; the same bits for every schedule
#   3 product    a job of two sites on the one GPU by real processes; a worker is killed
#   4 groups     tensor and data parallel ranks against one rank
#   5 speed      copies, kernels, layers, iterations
#   6 torch      the same layers by PyTorch, where python3 has it
#   7 sanitizer  compute-sanitizer over the kernels, where it is installed
# shellcheck disable=SC2317  # phases are called by name
set -euo pipefail
export LC_ALL=C.UTF-8
names=(versions kernels training product groups speed torch sanitizer)
weights=(10 60 60 50 40 110 90 40)  # seconds of the whole budget
readonly must_pass=4                # and those before it
readonly skipped=77

usage() {
  sed -n '/^# Usage/,/^#   --out/s/^# //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
refuse() {
  echo "error: $1" >&2
  usage
}

emulated=false budget=470 phases=0,1,2,3,4,5,6,7 out=${OUT:-}
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) sed -n '2,/^# shellcheck/s/^# //p' "${BASH_SOURCE[0]}" | sed '$d' && exit 0 ;;
    --emulated) emulated=true ;;
    --budget | --phases | --out)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      declare "${1#--}=$2"
      shift
      ;;
    *) refuse "$1 is no flag of device.sh" ;;
  esac
  shift
done
[[ $budget =~ ^[1-9][0-9]{0,5}$ ]] || refuse "--budget $budget: not a number of seconds"
[[ $phases =~ ^[0-7](,[0-7])*$ ]] || refuse "--phases $phases: not a list of phases 0 to 7, such as 0,1,3"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -f "$here/VERSION" ]; then
  bin=$here/bin sources=$here/src text=$here/LICENSE torch_block=$here/torch_block.py
  own_libraries=$here/lib:$here/lib/ucx
  out=${out:-device-results}
  commit=$(sed -n 's/^commit //p' "$here/VERSION")
  kernels=$(sed -n 's/^kernels //p' "$here/VERSION")
else
  root=$(dirname "$here")
  bin=$root/build/release/bin sources=$root text=$root/LICENSE torch_block=$here/device/torch_block.py
  own_libraries=
  out=${out:-$root/build/device-results}
  commit=$(git -C "$root" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
  kernels=$(sed -n 's/^GEOPIPE_KERNELS_SHA256:INTERNAL=//p' "$root/build/release/CMakeCache.txt" 2>/dev/null || true)
  if [ ! -x "$bin/device_check" ]; then
    echo "error: $bin/device_check is not built; run: deploy/build.sh release -- device-bundle" >&2
    exit 2
  fi
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d /tmp/device.XXXXXX)  # sockets lie in it, whose names are short
trap 'rm -rf "$work"' EXIT
for name in "${names[@]}" nvcc; do
  rm -f "$out/$name.log"
done
rm -f "$out"/{versions,correctness,losses,product,groups,speed,torch,phases}.tsv "$out/gpu.md" \
  "$out"/nvidia-smi-{before,after}.txt

# --- The GPU library ------------------------------------------------------------------------------------------------

# missing <LD_LIBRARY_PATH> <file>: what the file loads and the loader does not find.
missing() {
  LD_LIBRARY_PATH=$1 ldd "$2" 2>/dev/null | awk '/not found/ {print $1}'
}

# Finds the folders of CUDA's libraries, so that the GPU library loads: those of the environment, of Python's packages,
# of the toolkit, in this order. `lacks` is what is in none.
find_cuda() {
  local python toolkit found
  python=$(python3 -c 'import glob, sys
print(":".join(d for p in sys.path if p for d in sorted(glob.glob(p + "/nvidia/*/lib"))))' 2>/dev/null || true)
  toolkit=$(dirname "$(dirname "$nvcc")")
  for found in "${LD_LIBRARY_PATH:-}" "$python" "$toolkit/lib64:$toolkit/lib"; do
    libraries=$own_libraries${found:+:$found}
    libraries=${libraries#:}
    lacks=$(missing "$libraries" "$library" | xargs)
    if [ -z "$lacks" ]; then
      return
    fi
  done
}

# Builds the GPU library on this machine, because of $1.
build_library() {
  local kernel_sources
  if [ ! -x "$nvcc" ]; then
    echo "libgeopipe_cuda.so $1; put CUDA's libraries on LD_LIBRARY_PATH, or nvcc on PATH to build it here"
    return
  fi
  mapfile -t kernel_sources < <(find "$sources"/runtime/gpu/{kernels,cuda} -name '*.cc' ! -name fibers.cc)
  if "$nvcc" -x cu -std=c++20 -O3 -fmad=false -arch=native --threads 0 -shared -cudart shared \
    -Xcompiler -fPIC,-fvisibility=hidden -I "$sources" "-DGEOPIPE_KERNELS_SHA256=\"$kernels\"" \
    -o "$work/libgeopipe_cuda.so" "${kernel_sources[@]}" -lcublasLt >"$out/nvcc.log" 2>&1; then
    echo "libgeopipe_cuda.so $1; built it here by $nvcc"
    library=$work/libgeopipe_cuda.so
    find_cuda
  else
    echo "libgeopipe_cuda.so $1, and $nvcc does not build it: $out/nvcc.log"
  fi
}

choose_library() {
  if $emulated; then
    library=$bin/libgeopipe_cuda_emulated.so
    return
  fi
  library=$bin/libgeopipe_cuda.so
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  if [ ! -f "$library" ]; then
    build_library "was not built with the programs"
    return
  fi
  find_cuda
  if [ -n "$lacks" ]; then
    build_library "does not load without $lacks"
  fi
}

# --- Phases ---------------------------------------------------------------------------------------------------------
# Each is a function that is run in a shell of its own, with its output in a log. The last line says what it found.

deadline=0 # of the phase, in SECONDS

# limited <command>...: runs it with the programs' libraries, for what is left of the phase.
limited() {
  local left=$((deadline - SECONDS))
  LD_LIBRARY_PATH=$libraries timeout --foreground --kill-after=10 $((left > 0 ? left : 1)) "$@"
}

# fail_with <reason>...: ends the phase, with the reasons as its last line.
fail_with() {
  printf '%s; ' "$@" | sed 's/; $//'
  echo
  exit 1
}

# check <phase>: one phase of device_check, which leaves out what it has no time for.
check() {
  local phase=$1 small=()
  if $emulated; then small=(--small); fi
  limited "$bin/device_check" "$phase" --library "$library" --out "$out" --budget $(((deadline - SECONDS) * 9 / 10)) \
    "${small[@]}"
}

# has_rows <file.tsv>: whether there is more than the names of its columns.
has_rows() {
  [ -f "$1" ] && [ "$(wc -l <"$1")" -gt 1 ]
}

# The reasons that nvidia-smi gives for clocks below the highest.
slowed_by() {
  awk -F: '/Clocks (Event|Throttle) Reasons/ {inside = 1; next}
    inside && !/Active/ {inside = 0}
    inside && $2 ~ /^ Active/ {gsub(/^ +| +$/, "", $1); reasons = reasons (reasons ? ", " : "") $1}
    END {print reasons ? reasons : "nothing"}' "$1"
}

phase_versions() {
  echo "programs of commit $commit"
  echo "host $(uname -srm), $(ldd --version | sed -n 1p), $(nproc) processors," \
    "$(awk '/^MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo)"
  if ! $emulated && [ -f "$out/nvidia-smi-before.txt" ]; then
    local asked=name,driver_version,compute_mode,memory.total,temperature.gpu,power.limit
    nvidia-smi --format=csv --query-gpu="$asked,clocks.sm,clocks.max.sm,clocks.mem" || true
    echo "clocks held down by: $(slowed_by "$out/nvidia-smi-before.txt")"
  fi
  echo "libraries from ${libraries:-the system}"
  local file modules=() wrong=()
  if [ -d "$here/lib/ucx" ]; then modules=("$here"/lib/ucx/*); fi
  for file in "$bin"/{geopipectl,geopipe-{coordinator,agent,worker},device_check} "$library" "${modules[@]}"; do
    local absent foreign=
    absent=$(missing "$libraries" "$file" | xargs)
    if [ -f "$here/VERSION" ]; then
      foreign=$(LD_LIBRARY_PATH=$libraries ldd "$file" | awk -v own="$here/" '
        $2 == "=>" && index($3, own) != 1 && $1 !~ /^lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so/ && $1 !~ /^lib(cu|nv)/ {
          print $1}' | xargs)
    fi
    if [ -n "$absent$foreign" ]; then
      wrong+=("${file##*/}: ${absent:+not found: $absent}${foreign:+not of the bundle: $foreign}")
    fi
  done
  LD_LIBRARY_PATH=$libraries ldd "$library" | grep -E 'lib(cu|nv)' || true
  if [ ${#wrong[@]} -gt 0 ]; then
    fail_with "${wrong[@]}"
  fi
  check versions
}
phase_kernels() { check kernels; }
phase_training() { check training; }
phase_groups() { check groups; }
phase_speed() { check speed; }

# The workers of the playground, at the sites that match a pattern.
workers() {
  local process
  for process in /proc/[0-9]*; do
    if [[ $(tr '\0' ' ' <"$process/cmdline") == *"/geopipe-worker --agent unix:$work/"*" --site "$1\ * ]]; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}

# Processor time that their executors have taken, in ticks.
executor_ticks() {
  local worker
  for worker in $(workers 'site-[12]'); do
    cat "/proc/$worker"/task/*/stat
  done 2>/dev/null | awk '$2 == "(executor)" {ticks += $14 + $15} END {print ticks + 0}'
}

# Passes on the playground's lines, and at some of its iterations kills the second site's worker ("kill"), or looks how
# busy the executors are ("watch").
follow() {
  local line word iteration begin_us=0 begin_ticks=0
  while IFS= read -r line; do
    printf '%s\n' "$line"
    read -r word iteration _ <<<"$line"
    case $1:$word:${iteration%/*} in
      kill:iteration:4) kill -9 "$(workers site-2)" ;;
      watch:iteration:4) begin_us=${EPOCHREALTIME/./} begin_ticks=$(executor_ticks) ;;
      watch:iteration:14)
        awk -v ticks=$(($(executor_ticks) - begin_ticks)) -v us=$((${EPOCHREALTIME/./} - begin_us + 1)) \
          -v hz="$(getconf CLK_TCK)" 'BEGIN {printf "%.0f %%\n", ticks / hz / (us / 1e6) / 2 * 100}' >"$work/busy"
        ;;
    esac
  done
}

# play <job> <follow's argument> <flag>...: trains the job. Its losses and norms are then in $work/<job>.
play() {
  local job=$1 to_do=$2 report=$out/product/$1.playground/report.json
  shift 2
  sed "s/NAME/$job/" "$work/job.yaml" >"$work/$job.yaml"
  TMPDIR=$work limited "$bin/geopipectl" playground --job "$work/$job.yaml" --output "$out/product" --sites 2 \
    --link latency=20ms,bandwidth=1Gbps "$@" 2>&1 | follow "$to_do"
  sed -n '/^  "iterations": \[/,/^  \]/s/^ *"\(loss\|grad_norm\)": \(.*\),$/\1 \2/p' "$report" >"$work/$job"
  awk -v job="$job" -v OFS='\t' '
    NR == FNR {if ($1 == "loss") {first = first ? first : $2; last = $2} next}
    /^  "(predicted|measured)": [{]/ {of = $1}
    /"iteration_s":/ {ms[of] = sprintf("%.1f", $2 * 1000)}
    END {print job, sprintf("%.4f", first), sprintf("%.4f", last), ms["\"predicted\":"], ms["\"measured\":"]}' \
    "$work/$job" "$report" >>"$out/product.tsv"
}

phase_product() {
  cat >"$work/job.yaml" <<JOB
apiVersion: geopipe/v1
kind: TrainingJob
metadata: {name: NAME}
spec:
  model:
    {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,
     vocab_size: 258, max_position_embeddings: 64}
  data: {format: text, path: ["$text"], tokenizer: byte}
  training: {iterations: 16, tokens_per_iteration: 256, seed: 1, learning_rate: 5.0e-3, grad_clip: 1.0}
  precision: fp32
  search: {micro_batch_size: [2], sequence_length: [32]}
  parallelism: {pipeline: 2}
  recovery: memory
JOB
  printf 'job\tfirst loss\tlast loss\tpredicted ms\tmeasured ms\n' >"$out/product.tsv"
  local gpu=(--backend cuda) recovered wrong=() apart
  if [ "$library" != "$bin/libgeopipe_cuda.so" ]; then gpu+=(--gpu-library "$library"); fi
  echo unknown >"$work/busy"
  play gpu watch "${gpu[@]}"
  play killed kill "${gpu[@]}" | tee "$work/killed.log"
  play cpu nothing --backend cpu

  apart=$(paste "$work/gpu" "$work/cpu" | awk '
    {apart = ($2 - $4) / $4; apart = apart < 0 ? -apart : apart; if (apart > worst) worst = apart}
    END {printf "%.1e\n", worst}')
  recovered=$(sed -n 's/^DEPLOYING  epoch 2 goes on from iteration \([0-9]*\).*/\1/p' "$work/killed.log")
  awk '$1 == "loss" {first = first ? first : $2; last = $2}
    END {exit !(NR == 32 && last < 0.8 * first)}' "$work/gpu" || wrong+=("the loss does not fall by a fifth")
  awk -v apart="$apart" 'BEGIN {exit !(apart <= 1e-5)}' || wrong+=("numbers differ by $apart from the cpu backend's")
  [ "${recovered:-0}" -gt 0 ] || wrong+=("no state was kept for the worker that was killed")
  # The numbers of an iteration that the worker had done and not yet told died with it.
  paste "$work/gpu" "$work/killed" | awk '$4 == "null" {++untold; next} $2 != $4 {++others}
    END {exit !(NR == 32 && untold <= 2 && others == 0)}' || wrong+=("numbers are others after a worker was killed")
  if [ ${#wrong[@]} -gt 0 ]; then
    fail_with "${wrong[@]}"
  fi
  awk -v apart="$apart" -v recovered="$recovered" -v busy="$(cat "$work/busy")" -F '\t' '$1 == "gpu" {
    printf "loss %s to %s, %s from the cpu backend; ", $2, $3, apart
    printf "a killed worker went on from iteration %s, same bits; ", recovered
    printf "iterations of %s ms, predicted %s; executors %s busy\n", $5, $4, busy}' "$out/product.tsv"
}

phase_torch() {
  if $emulated; then
    echo "not here: the GPU is emulated"
    return "$skipped"
  elif ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1; then
    echo "not here: python3 finds no torch with a GPU"
    return "$skipped"
  elif ! has_rows "$out/speed.tsv"; then
    echo "nothing to compare with: phase 5 has timed nothing"
    return "$skipped"
  fi
  local left=$((deadline - SECONDS))
  timeout --foreground --kill-after=10 "$left" python3 "$torch_block" "$out/speed.tsv" "$out/torch.tsv" \
    --budget $((left * 9 / 10))
}

phase_sanitizer() {
  local sanitizer tool tools=(memcheck racecheck initcheck) end=$deadline run=0 wrong=()
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if $emulated; then
    echo "not here: the GPU is emulated"
    return "$skipped"
  elif [ ! -x "$sanitizer" ]; then
    echo "not here: compute-sanitizer is not installed"
    return "$skipped"
  fi
  mkdir -p "$work/sanitizer"
  for tool in "${tools[@]}"; do
    echo "== $tool"
    deadline=$((SECONDS + (end - SECONDS) / (${#tools[@]} - run++)))
    # What cuBLASLt does is its own concern, but what it has written counts as initialised.
    local only=(--kernel-name kns=geopipe)
    if [ "$tool" = initcheck ]; then only=(); fi
    limited "$sanitizer" --tool "$tool" --error-exitcode 9 --report-api-errors no "${only[@]}" "$bin/device_check" \
      kernels --small --library "$library" --out "$work/sanitizer" --budget $(((deadline - SECONDS) * 9 / 10)) ||
      wrong+=("$tool ended with status $?")
  done
  if [ ${#wrong[@]} -gt 0 ]; then
    fail_with "${wrong[@]}"
  fi
  echo "${tools[*]}: no error"
}

# --- The run --------------------------------------------------------------------------------------------------------

# run_phase <number>: runs it for its share of what is left, prints its line, and adds it to phases.tsv.
run_phase() {
  local number=$1 name=${names[$1]} log=$out/${names[$1]}.log weight=0 left status=0 result found begin=$SECONDS later
  for later in ${phases//,/ }; do
    if [ "$later" -ge "$number" ]; then weight=$((weight + weights[later])); fi
  done
  left=$((budget - SECONDS))
  if [ $left -lt 5 ]; then
    echo "not begun: the budget of $budget s is spent" >"$log"
    status=1
  else
    deadline=$((SECONDS + left * weights[number] / weight))
    set +e
    (
      set -e
      "phase_$name"
    ) >"$log" 2>&1
    status=$?
    set -e
  fi
  # An error may stand before what a pipe held back.
  found=$(grep '^error: ' "$log" | tail -n 1 || true)
  found=$(echo "${found:-$(tail -n 1 "$log")}" |
    sed -E "s/^(error|device_check|$name): //; s/ in [0-9.]+ s\$//; s/^$name \((seed [0-9]+)\): (.*)/\2, \1/")
  case $status in
    0) result=passed ;;
    "$skipped") result=skipped ;;
    124 | 137) result=failed found="ended by its time limit of $((deadline - begin)) s" ;;
    *) result=failed ;;
  esac
  local seconds=$((SECONDS - begin))
  printf '%s\t%s\t%s\t%s\t%s\n' "$number" "$name" "$result" "$seconds" "$found" >>"$out/phases.tsv"
  echo "phase $number $name: $result in $seconds s: $found"
  if [ $result = failed ]; then
    grep '^FAILED [^ ]' "$log" | head -n 5 | sed 's/^/  /' || true
    echo "  log: $log"
    if [ "$number" -le $must_pass ]; then exit_status=1; fi
  fi
}

# markdown <file.tsv>: the same as a table of Markdown.
markdown() {
  awk -F '\t' -v OFS=' | ' '{$1 = $1; print "| " $0 " |"}
    NR == 1 {line = "|"; for (i = 1; i <= NF; ++i) line = line "---|"; print line}' "$1"
}

# The section for docs/gpu.md.
section() {
  local name
  printf '## %s, %s\n\n%s.' "${title%%,*}" "$(date -u +%Y-%m-%d)" "$title"
  if $emulated; then
    printf ' No figure here is of a GPU.'
  elif [ -f "$out/nvidia-smi-after.txt" ]; then
    printf ' Clocks were held down before by: %s; afterwards: %s.' "$(slowed_by "$out/nvidia-smi-before.txt")" \
      "$(slowed_by "$out/nvidia-smi-after.txt")"
  fi
  printf '\n\n'
  { printf 'phase\tname\tresult\tseconds\tfound\n' && cat "$out/phases.tsv"; } >"$work/phases.tsv"
  markdown "$work/phases.tsv"
  for name in product speed torch; do
    if has_rows "$out/$name.tsv"; then
      printf '\n### %s\n\n' "$name"
      markdown "$out/$name.tsv"
    fi
  done
}

library='' libraries=$own_libraries lacks='' nvcc='' exit_status=0
echo "GeoPipe $commit; results in $out"
choose_library
if ! $emulated && command -v nvidia-smi >/dev/null; then
  nvidia-smi -q >"$out/nvidia-smi-before.txt" || true
fi
for phase in $(tr ',' '\n' <<<"$phases" | sort -u); do
  run_phase "$phase"
done
if ! $emulated && command -v nvidia-smi >/dev/null; then
  nvidia-smi -q >"$out/nvidia-smi-after.txt" || true
fi

# The card and its driver, from phase 0's table and nvidia-smi.
title() {
  local card cuda driver=
  card=$(awk -F '\t' '$1 == "card" {print $2}' "$out/versions.tsv" 2>/dev/null || true)
  cuda=$(awk -F '\t' '$1 == "driver" {print $2}' "$out/versions.tsv" 2>/dev/null || true)
  if [ -f "$out/nvidia-smi-before.txt" ]; then
    driver=$(sed -n 's/^Driver Version *: //p' "$out/nvidia-smi-before.txt")
  fi
  printf '%s%s%s, commit %s, %s UTC\n' "${card:-A GPU that phase 0 has not opened}" "${driver:+, driver $driver}" \
    "${cuda:+, CUDA $cuda}" "$commit" "$(date -u '+%Y-%m-%d %H:%M')"
}
title=$(title)
section >"$out/gpu.md"

printf '\n%s\n' "$title"
awk -F '\t' '{
  parts = $3 == "passed" ? split($5, found, "; ") : split($5, found, "\t")
  printf "%s %-10s %-8s %4d s  %s\n", $1, $2, $3, $4, found[1]
  for (i = 2; i <= parts && lines++ < 48; ++i) printf "%30s%s\n", "", found[i]
}' "$out/phases.tsv"
echo "for docs/gpu.md: $out/gpu.md"
exit $exit_status
