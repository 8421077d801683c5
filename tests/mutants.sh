#!/usr/bin/env bash
# Breaks the library in one way after the other, and checks that the torture or the tests find each fault.
#
#   tests/mutants.sh                       every mutant in tests/mutants, as a table in Markdown
#   tests/mutants.sh no-wake-up minority   only these
#   tests/mutants.sh --seconds 60          how long each mutant is tortured; 20 by default
#   tests/mutants.sh --check               only whether each patch still applies
#
# The first line of a patch says what is wrong with the mutant. The second line names what reveals it: options of `torture`, or
# `test` and the tests to run, or `lib` and unit tests, which are built in a fraction of the time. Patches are applied to a copy of
# the checkout. Exits with 1 if a mutant was missed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top=$PWD

seconds=20 check=false names=()
while (($#)); do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --check) check=true ;;
    -*) echo "$1 is not known" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
if ((${#names[@]} == 0)); then
  for patch in tests/mutants/*.patch; do
    names+=("$(basename "$patch" .patch)")
  done
fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -p -t "$copy"
# Dependencies are built once; for each mutant only the crate is built again.
export CARGO_TARGET_DIR=$top/target/mutants

missed=0

# Builds and tortures the copy; prints the violations found, as "exclusion 3, idle 1".
torture() {
  local log=$copy/torture.log
  if ! (cd "$copy" && cargo build --quiet --all-features --example torture) >"$log" 2>&1; then
    cat "$log" >&2
    echo 'does not build'
    return
  fi
  # shellcheck disable=SC2086  # several options
  if timeout $((seconds + 300)) "$CARGO_TARGET_DIR/debug/examples/torture" --seconds "$seconds" $1 >"$log" 2>&1; then
    return
  fi
  local found
  found=$(sed -nE 's/^(WRONG: )?([a-z ]+): ([0-9]+)$/\2 \3/p' "$log" | paste -sd, | sed 's/,/, /g')
  if [[ -z $found ]]; then
    tail -n 20 "$log" >&2
    found='the run itself failed'
  fi
  echo "$found"
}

# Builds these targets of the copy and runs tests of them; prints the names of the tests that fail.
tested() {
  local log=$copy/tested.log
  # shellcheck disable=SC2086  # several targets, several filters
  if (cd "$copy" && timeout 900 cargo test --all-features --no-fail-fast $1 -- $2) >"$log" 2>&1; then
    return
  fi
  local found
  found=$(sed -nE 's/^test ([a-z0-9_:]+) \.\.\. FAILED$/`\1`/p' "$log" | sed 's/::unless_late//' | sort -u | paste -sd, | sed 's/,/, /g')
  if [[ -z $found ]]; then
    tail -n 20 "$log" >&2
    found='the run itself failed'
  fi
  echo "$found"
}

if ! $check; then
  echo '| mutant | options | found by |'
  echo '| --- | --- | --- |'
fi
for name in "${names[@]}"; do
  patch=$top/tests/mutants/$name.patch
  { read -r what && read -r options; } <"$patch"
  if ! (cd "$copy" && patch --quiet -p1 --force <"$patch") >&2; then
    echo "$name does not apply any more" >&2
    missed=1
    continue
  fi
  if ! $check; then
    case $options in
      'lib '*) found=$(tested --lib "${options#lib }") ;;
      'test '*) found=$(tested '--lib --test it' "${options#test }") ;;
      *) found=$(torture "--deployment one $options") ;;
    esac
    echo "| $what | \`$options\` | ${found:-**missed**} |"
    [[ -n $found && $found != *'not build'* && $found != *'itself failed'* ]] || missed=1
  fi
  (cd "$copy" && patch --quiet -p1 --reverse --force <"$patch") >&2
done
exit $missed
