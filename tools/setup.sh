#!/usr/bin/env bash
# Set up the project: Python packages and the command msmq in .venv, Delta's jars and an archive of Java classes in
# .cache, conf/spark.conf for spark-submit, and, if the package manager may be used, Java and the capture tools. A second
# run finds everything in place, changes nothing, and needs no network.
#
# With the argument "packages" it ends after Java and the Python packages. PYTHON=... chooses the Python;
# MSMQ_NO_SYSTEM_PACKAGES=1 does not use the package manager; MSMQ_BUILD_TOOLS=1 lets pip fetch tools that build
# packages, without hashes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LOCK=conf/requirements.txt
VENV=.venv
mkdir -p .cache

say() { printf 'setup: %s\n' "$*" >&2; }
stop() { say "$*"; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Settings of other Sparks and Hadoops, which a profile may have.
unset SPARK_HOME SPARK_CONF_DIR HADOOP_CONF_DIR YARN_CONF_DIR PYSPARK_SUBMIT_ARGS

# Two set-ups at the same time (make demo and make test) would install into the same folder.
if have flock; then exec 9>.cache/setup.lock; flock 9; fi

# --- the machine's package manager -------------------------------------------------------------------------------

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

may_install() {
  [ -z "${MSMQ_NO_SYSTEM_PACKAGES:-}" ] && { have apt-get || have dnf; } &&
    { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }
}

# system_package DEBIAN-NAME FEDORA-NAME: install it if the package manager has it.
system_package() {
  may_install || return 1
  if have apt-get; then
    apt_install "$1" || { as_root apt-get update -q >>.cache/setup.log 2>&1 && apt_install "$1"; }
  else
    as_root dnf install -q -y "$2" >>.cache/setup.log 2>&1
  fi
}
apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$1" >>.cache/setup.log 2>&1; }

# --- Java 17 or later ---------------------------------------------------------------------------------------------

java_version() {  # print the major version of the Java that Spark would start, or 0
  local java=java
  [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
  { "$java" -version 2>&1 || true; } | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

need_java() {
  [ "$(java_version)" -ge 17 ] && return
  say "no Java 17 or later ($(java_version) found): installing one"
  system_package openjdk-21-jre-headless java-21-openjdk-headless ||
    system_package openjdk-17-jre-headless java-17-openjdk-headless || true
  [ "$(java_version)" -ge 17 ] && return
  if [ -n "${JAVA_HOME:-}" ]; then
    stop "JAVA_HOME is $JAVA_HOME, which is not Java 17 or later: unset it, or set it to one that is"
  fi
  stop "Java 17 or later is needed. Type: $(java_line)"
}

java_line() {
  if have apt-get; then echo "sudo apt-get install openjdk-17-jre-headless   (or openjdk-21-jre-headless)"
  elif have dnf; then echo "sudo dnf install java-21-openjdk-headless"
  elif have brew; then echo 'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"'
  else echo "the command for your system in docs/start/quickstart.md, section Prerequisites"
  fi
}

# --- Python 3.11 or 3.12 and the pinned packages ------------------------------------------------------------------

suits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.12 python3.11 python3 \
    "$HOME"/.pyenv/versions/3.12*/bin/python "$HOME"/.pyenv/versions/3.11*/bin/python; do
    if suits "$candidate"; then echo "$candidate"; return; fi
  done
  return 1
}

# say_if_another USED: say so if PYTHON names another Python than the one that is used.
say_if_another() {
  local named used why="Python 3.11 or 3.12 is needed"
  if [ -z "${PYTHON:-}" ]; then return; fi
  named="$("$PYTHON" -V 2>/dev/null || echo "no such program")" used="$("$1" -V)"
  if suits "$PYTHON"; then why="remove $VENV to use it"; fi
  if [ "$named" != "$used" ]; then say "not $PYTHON ($named) but $1 ($used) is used: $why"; fi
}

# pip takes no file whose hash is not in the list. That holds for the tool that builds packages from source too: it is
# installed first, and pip fetches no other. Only a source that needs another tool, where an index has no wheel for this
# machine, needs MSMQ_BUILD_TOOLS=1.
install_packages() {
  local isolation="--no-build-isolation"
  [ -z "${MSMQ_BUILD_TOOLS:-}" ] || isolation="--use-pep517"
  sed -n '/^setuptools==/,/[^\\]$/p' "$LOCK" >.cache/build-tool.txt
  if pip_install --only-binary :all: .cache/build-tool.txt && pip_install "$isolation" "$LOCK"; then return; fi
  stop "the packages of $LOCK could not be installed: see the lines above. MSMQ_BUILD_TOOLS=1 lets pip fetch other tools
  to build them, which are not verified"
}
pip_install() {  # the last argument is the list; modules are compiled when they are used first, not all of them here
  "$VENV/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes "${@:1:$#-1}" --requirement "${!#}"
}

need_packages() {
  local python wanted
  wanted="$(cksum <"$LOCK") $PWD"
  # The stamp contains the path: the scripts of a moved environment contain the old path.
  if [ "$(cat "$VENV/.stamp" 2>/dev/null)" = "$wanted" ] && suits "$VENV/bin/python"; then
    say_if_another "$VENV/bin/python"
    return
  fi
  if ! python="$(find_python)"; then
    system_package python3 python3.12 || true
    python="$(find_python)" || stop "Python 3.11 or 3.12 is needed. Install one, or name it: PYTHON=/path/to/python3.12 make setup"
  fi
  say_if_another "$python"
  say "Python packages, with $("$python" -V) (a few minutes, once)"
  rm -rf "$VENV"
  if ! "$python" -m venv "$VENV" >>.cache/setup.log 2>&1; then
    system_package "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" python3 || true
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || stop "$python cannot make a virtual environment. Type: sudo apt-get install python3-venv"
  fi
  install_packages
  printf '%s\n' "$wanted" >"$VENV/.stamp"
}

# --- the command msmq --------------------------------------------------------------------------------------------

need_command() {
  cmp -s tools/msmq "$VENV/bin/msmq" || install -m 755 tools/msmq "$VENV/bin/msmq"
}

# --- Delta's jars, and the settings of spark-submit --------------------------------------------------------------

need_jars() {
  if "$VENV/bin/python" -m tools.fetch_jars --check; then return; fi
  say "Delta's jars (once)"
  "$VENV/bin/python" -m tools.fetch_jars || stop "Delta's jars could not be fetched: see the lines above"
}

# With an archive of the classes that a run loads, Java starts in half the time. Without it everything works, slower.
# Java takes it only with the same class path and the same files there: their paths are in the stamp, and a file that is
# newer than the stamp is another one.
need_classes() {
  local wanted jars=("$PWD"/.cache/jars/*.jar "$PWD/$VENV"/lib/python*/site-packages/pyspark/jars/*.jar)
  wanted="$({ cat "$LOCK" conf/jars.sha256 tools/archive_classes.py; printf '%s\n' "${jars[@]}"
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1; } | cksum) $PWD"
  if [ "$(cat .cache/classes.stamp 2>/dev/null)" = "$wanted" ] &&
    [ -z "$(find -L "${jars[@]}" -newer .cache/classes.stamp 2>&1 | head -n 1)" ]; then return; fi
  say "an archive of Java classes, so that runs start faster (a minute, once)"
  rm -f .cache/classes.jsa
  PYTHONPATH=. "$VENV/bin/python" tools/archive_classes.py .cache/classes.jsa >>.cache/setup.log 2>&1 ||
    say "the archive could not be made (see .cache/setup.log); runs start slower without it"
  printf '%s\n' "$wanted" >.cache/classes.stamp
}

need_spark_conf() {
  local wanted
  wanted="$(cat jobs/session.py conf/jars.sha256 tools/write_spark_conf.py .cache/classes.stamp | cksum) $PWD"
  if [ -f conf/spark.conf ] && [ "$(cat .cache/spark.conf.stamp 2>/dev/null)" = "$wanted" ]; then return; fi
  PYTHONPATH=. "$VENV/bin/python" tools/write_spark_conf.py conf/spark.conf
  printf '%s\n' "$wanted" >.cache/spark.conf.stamp
}

# --- programs that only some tests and recordings use -------------------------------------------------------------

want_tools() {
  local missing=""
  have tshark || missing="$missing tshark:wireshark-cli"
  have tcpdump || missing="$missing tcpdump:tcpdump"
  have chromium || have chromium-browser || have google-chrome || missing="$missing chromium:chromium"
  have ip || missing="$missing iproute2:iproute"
  have krb5kdc || missing="$missing krb5-kdc:krb5-server"
  have kadmin.local || missing="$missing krb5-admin-server:krb5-server"
  have kinit || missing="$missing krb5-user:krb5-workstation"
  # Only once, not at every start: without a network each attempt takes time.
  if [ -z "$missing" ] || [ "$(cat .cache/tools.tried 2>/dev/null)" = "$missing" ]; then return; fi
  printf '%s\n' "$missing" >.cache/tools.tried
  local each
  for each in $missing; do
    say "installing ${each%%:*}, which some tests use"
    system_package "${each%%:*}" "${each##*:}" || say "${each%%:*} is not installed: tests that need it are listed as not run"
  done
}

need_java
need_packages
if [ "${1:-}" = packages ]; then exit; fi
need_command
need_jars
if have flock; then exec 9>.cache/classes.lock; flock 9; fi  # instead of the first lock: others may use the packages
want_tools &  # beside the archive: the one waits for a network, the other computes
need_classes
need_spark_conf
wait
