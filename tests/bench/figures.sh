#!/usr/bin/env bash
# Makes every figure and table of the docs anew from the programs: pictures in docs/, and in README.md and docs/*.md what
# stands between `<!-- figures: NAME -->` and `<!-- end -->`.
#
#   tests/bench/figures.sh                  writes all of them (a quarter of an hour on a machine that does nothing else)
#   tests/bench/figures.sh NAME...          writes these (`--list` names them)
#   tests/bench/figures.sh --check [NAME...] writes nothing; ends with 1 and names what differs
#
# Plans are the same for the same seed unless a time limit ends the search, so run it where nothing else runs. Figures
# that are measured (measured_NAME below) differ from run to run: --check leaves them out. $BIN: where the programs are.
# shellcheck disable=SC2317  # functions are called by names that are put together
set -euo pipefail
export LC_ALL=C.UTF-8 COLUMNS=120
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
BIN=${BIN:-$root/build/release/bin}
ctl=$BIN/geopipectl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

examples=deploy/examples
clusters=tests/golden/clusters
sweeps=(--sweep latency=0.5ms..50ms --sweep bandwidth=10Gbps..800Gbps)
grid=("${sweeps[@]}" --steps "7,7")

plan_example() { # 13b|70b, flags
  local job=$1
  shift
  "$ctl" plan -f "$examples/llama-2-$job.yaml" --topology "$examples/three-regions.yaml" "$@"
}

# Each is searched for once, whoever asks: `sweep NAME JOB SCHEDULES FLAGS...` leaves NAME.csv, NAME.svg and NAME.txt.
sweep() {
  local name=$1 job=$2 schedules=$3
  shift 3
  [ -e "$work/$name.csv" ] || plan_example "$job" "$@" --sweep-schedules "$schedules" \
    --export-csv "$work/$name.csv" > "$work/$name.txt"
}
sweep_svg() {
  local name=$1 job=$2 schedules=$3
  shift 3
  plan_example "$job" "$@" --sweep-schedules "$schedules" --export-svg "$work/$name.svg" > /dev/null
  cat "$work/$name.svg"
}

# Columns of a CSV by their names, for points with a plan: `columns FILE searched gain`.
columns() {
  awk -F, -v names="${*:2}" '
    NR == 1 { n = split(names, wanted, " "); for (i = 1; i <= NF; ++i) at[$i] = i; next }
    $at["iteration_s"] != "" { line = ""; for (i = 1; i <= n; ++i) line = line (i > 1 ? " " : "") $at[wanted[i]]; print line }
  ' "$1"
}

fenced() { printf '```\n'; cat; printf '```\n'; }

# ---- pictures ----
picture_plan() {
  "$ctl" simulate -f tests/golden/cases/two-sites-20ms.yaml --schedule geopipe --delta-n 2 \
    --export-svg "$work/plan.svg" > /dev/null
  cat "$work/plan.svg"
}
for job in 13b 70b; do
  eval "picture_sweep_grid_$job() { sweep_svg grid-$job $job geopipe,auto \"\${grid[@]}\"; }"
  eval "picture_sweep_bandwidth_$job() { sweep_svg bandwidth-$job $job geopipe,auto --sweep bandwidth=10Gbps..800Gbps; }"
done
picture_sweep_latency_13b() { sweep_svg latency-13b 13b geopipe,auto --sweep latency=0.5ms..50ms; }

# ---- docs/plans.md ----
explained_70b() {
  [ -e "$work/explained.txt" ] || "$ctl" plan -f "$clusters/llama-2-70b-4mi.yaml" \
    --topology "$clusters/two-h100-sites.yaml" --explain > "$work/explained.txt"
  cat "$work/explained.txt"
}
figure_plan_memory() { explained_70b | sed -n '/^memory of a device/,/^tightest/p' | fenced; }
figure_plan_time() { explained_70b | sed -n '/WHERE THE ITERATION/,/the iteration$/p' | fenced; }
figure_plan_choices() { explained_70b | awk 'BEGIN { RS = "" } /\nCHOICE /' | sed 1d | fenced; }
figure_plan_map() {
  "$ctl" plan -f "$clusters/llama-2-70b-16mi.yaml" --topology "$clusters/four-h100-sites.yaml" \
    --sweep latency=1ms..100ms --sweep bandwidth=10Gbps..10Tbps --steps 7,13 | sed -n '/^fastest: P/,$p' | fenced
}

# ---- docs/sweep.md ----
figure_sweep_summary() {
  printf '| job | searched | bubble saved, at most | iteration time saved, mean of 49 points | the same against 1F1B at its best b and s | bandwidth past which more does not help |\n|---|---|---|---|---|---|\n'
  local job schedule knee
  for job in 13b 70b; do
    sweep "grid-$job" "$job" geopipe,auto "${grid[@]}"
    sweep "fine-$job" "$job" geopipe --sweep latency=0.5ms..50ms --sweep bandwidth=1Gbps..800Gbps --steps 3,59
    knee=$(columns "$work/fine-$job.csv" knee bandwidth_bytes_per_s | awk '$1 == 1 && $2 > most { most = $2 } END { printf "%.3g Gbps", most * 8e-9 }')
    for schedule in geopipe auto; do
      columns "$work/grid-$job.csv" searched bubble_reduction latency_s bandwidth_bytes_per_s gain gain_over_best |
        awk -v job="llama-2-$job" -v schedule="$schedule" -v knee="$knee" '
          $1 == schedule { if (!n++ || $2 > most) { most = $2; latency = $3; bandwidth = $4 } gain += $5; best += $6 }
          END { printf "| %s | %s | %.1f %% (%.3g ms, %.3g Gbps) | %.1f %% | %.1f %% | %s |\n", job, schedule, 100 * most,
                1e3 * latency, 8e-9 * bandwidth, 100 * gain / n, 100 * best / n, schedule == "geopipe" ? knee : "as above" }'
    done
  done
  for schedule in geopipe auto; do
    for job in 13b 70b; do columns "$work/grid-$job.csv" searched gain gain_over_best; done |
      awk -v schedule="$schedule" '$1 == schedule { ++n; gain += $2; best += $3 }
        END { printf "| both | %s | | %.1f %% | %.1f %% | |\n", schedule, 100 * gain / n, 100 * best / n }'
  done
}
figure_sweep_choices() {
  printf '| b | s | 13b geopipe | 13b auto | 70b geopipe | 70b auto |\n|---|---|---|---|---|---|\n'
  local b s job schedule
  for b in 1 2 4; do
    for s in 2048 4096; do
      printf '| %s | %s |' "$b" "$s"
      for job in 13b 70b; do
        sed "s/micro_batch_size: \[[^]]*\]/micro_batch_size: [$b]/; s/sequence_length: \[[^]]*\]/sequence_length: [$s]/" \
          "$examples/llama-2-$job.yaml" > "$work/job.yaml"
        "$ctl" plan -f "$work/job.yaml" --topology "$examples/three-regions.yaml" "${sweeps[@]}" \
          --steps 3,3 --sweep-schedules geopipe,auto --export-csv "$work/choices.csv" > /dev/null
        for schedule in geopipe auto; do
          columns "$work/choices.csv" searched bubble_reduction gain | awk -v schedule="$schedule" '
            $1 == schedule { ++n; most = $2 > most ? $2 : most; gain += $3 }
            END { printf " %.1f %%; %.1f %% |", 100 * most, 100 * gain / n }'
        done
      done
      printf '\n'
    done
  done
}
for job in 13b 70b; do
  eval "figure_sweep_bandwidth_$job() { sweep bandwidth-$job $job geopipe,auto --sweep bandwidth=10Gbps..800Gbps; fenced < \"\$work/bandwidth-$job.txt\"; }"
done
figure_sweep_latency_13b() { sweep latency-13b 13b geopipe,auto --sweep latency=0.5ms..50ms; fenced < "$work/latency-13b.txt"; }

# ---- docs/published.md ----
published() {
  [ -e "$work/published.txt" ] || "$BIN/published_bench" > "$work/published.txt"
  awk -v part="$1" '/^\|/ { if (!inside) { ++table; inside = 1 } if (table == part) print; next } { inside = 0 }' "$work/published.txt"
}
figure_published_megatron() { published 1; }
figure_published_foundry() { published 2; }
figure_published_llama() { published 3; }

# ---- README.md: measured ----
measured_overlap() {
  COLUMNS=100 "$ctl" playground --job "$examples/overlap.yaml" --case "$examples/overlap-costs.yaml" --pace \
    --compare 1f1b:blocking,1f1b,geopipe --output "$work" | awk 'BEGIN { RS = "" } /VARIANT/' | fenced
}

# ---- what is asked for ----
check=no
asked=()
for argument in "$@"; do
  case $argument in
    --check) check=yes ;;
    --list) declare -F | awk '{ print $3 }' | sed -nE 's/^(picture|figure|measured)_//p' | sort -u; exit ;;
    --help | -h) sed -nE '2,/^# shellcheck /{/^# shellcheck /d; s/^# ?//p}' "${BASH_SOURCE[0]}"; exit ;;
    -*) echo "unknown flag $argument; --check, --list or names" >&2; exit 2 ;;
    *)
      "$0" --list | grep -qx -- "$argument" || { echo "no figure is called $argument; --list names them" >&2; exit 2; }
      asked+=("$argument")
      ;;
  esac
done
is_asked() { [ ${#asked[@]} -eq 0 ] || printf '%s\n' "${asked[@]}" | grep -qx -- "$1"; }

differ=0
# Puts a new text in the place of a file, or says that it is another.
settle() { # file, new text's file, name
  if cmp -s "$1" "$2"; then return; fi
  if [ $check = yes ]; then
    echo "$3: $1 is out of date"
    differ=1
  else
    cp "$2" "$1"
    echo "$3: $1 written"
  fi
}

for picture in $(declare -F | sed -n 's/^declare -f picture_//p'); do
  if is_asked "$picture"; then
    "picture_$picture" > "$work/new"
    settle "docs/${picture//_/-}.svg" "$work/new" "$picture"
  fi
done
for page in README.md docs/*.md; do
  for name in $(sed -nE 's/^<!-- figures: ([a-z0-9_]+) -->$/\1/p' "$page"); do
    is_asked "$name" || continue
    if declare -F "figure_$name" > /dev/null; then
      "figure_$name" > "$work/block"
    elif [ $check = no ]; then
      "measured_$name" > "$work/block"
    else
      continue
    fi
    awk -v name="$name" -v block="$work/block" '
      $0 == "<!-- end -->" { skipped = 0 }
      !skipped { print }
      $0 == "<!-- figures: " name " -->" { while ((getline line < block) > 0) print line; skipped = 1 }
    ' "$page" > "$work/page"
    settle "$page" "$work/page" "$name"
  done
done
exit $differ
