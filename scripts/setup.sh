# shellcheck shell=bash
# Sourced by the other scripts: where things are kept, and how what the project needs gets here.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${VERICACHE_CACHE:-$HOME/.cache/vericache}
TAG=$(basename "$0")

# llama.cpp comes whole inside this source package of PyPI (vendor/llama.cpp), so one checksum pins
# ggml and libllama.
LLAMA_PACKAGE=llama_cpp_python
LLAMA_VERSION=0.3.36
LLAMA_SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
OPENAI_VERSION=3.57.0
LLAMA_FLAGS=(
  -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF
  -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF
  -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF
  # GCC 12 believes that the tiles' configuration in ggml's AMX code is not read: without the other
  # two flags its stores are dropped, and products end with an illegal instruction.
  -DCMAKE_C_FLAGS=-w "-DCMAKE_CXX_FLAGS=-w -fno-tree-dse -fno-dse"
)

PACKAGES=(
  build-essential cmake ninja-build ccache git curl python3 python3-pip python3-venv
  libcli11-dev nlohmann-json3-dev libxxhash-dev libhwy-dev liburing-dev prometheus-cpp-dev
  librsvg2-dev fonts-dejavu-core pkg-config
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
  # Debian 12's plain clang-tidy and clang-format, 14, do not know all of C++20.
  clang-tidy-19 clang-format-19
)
# Of scripts/fuzz, and of the test and the picture of the dashboard.
FUZZ_PACKAGES=(clang-19 libclang-rt-19-dev)
BROWSER_PACKAGES=(chromium-headless-shell)

# Messages go to stderr: stdout belongs to what a script hands back (get-model's path).
say() { echo "[$TAG] $*" >&2; }
fail() {
  echo "[$TAG] error: $*" >&2
  exit 1
}

# quietly MESSAGE COMMAND...: shows the command's output only when it fails, then fails with MESSAGE.
quietly() {
  local message=$1 log
  shift
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    fail "$message"
  fi
  rm -f "$log"
}

# has_sha256 FILE SHA256
has_sha256() { echo "$2  $1" | sha256sum --check --status; }

# compile BUILD_DIR: ninja's one progress line on a terminal, elsewhere only what the compiler says.
compile() {
  local quiet=()
  [[ -t 2 ]] || quiet=(-- --quiet)
  cmake --build "$1" "${quiet[@]}" >&2 || fail "compiling was interrupted, or failed with the compiler's message above"
}

# The libraries are built for this CPU (GGML_NATIVE), so its instruction set is part of every key.
cpu_flags() { grep -m1 -E '^(flags|Features)' /proc/cpuinfo || uname -m; }

use_ccache() {
  export CCACHE_DIR=$CACHE/ccache CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # what precompiled headers ask for
  CCACHE_NAMESPACE=$(cpu_flags | sha256sum | cut -c1-16)
  export CCACHE_NAMESPACE
}

# install_packages PACKAGE...: those that are missing.
install_packages() {
  command -v dpkg-query >/dev/null ||
    fail "this is not Debian: install the equivalents of these packages and build with cmake: $*"
  local package missing=() sudo=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "Debian packages are missing and only root can install them; run as root: apt-get install ${missing[*]}"
    sudo -v || fail "sudo was refused; have root run: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  quietly "apt-get update failed (above); check the network and /etc/apt/sources.list" \
    "${sudo[@]}" apt-get update
  quietly "apt-get could not install ${missing[*]} (above)" \
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# pip_download FOLDER REQUIREMENT OPTION...: pip's own log becomes one line.
pip_download() {
  local dir=$1 requirement=$2 log=$1/log reason
  shift 2
  python3 -m pip download --quiet --no-deps --no-cache-dir --dest "$dir" "$@" "$requirement" \
    >"$log" 2>&1 && return 0
  if grep -q 'connection broken' "$log"; then
    reason="no connection to the package index"
  else
    reason=$(grep -m1 ERROR "$log" || tail -n 1 "$log")
  fi
  fail "pip could not download $requirement ($reason); check the network and 'pip config list', then run it again"
}

# fetch_sdist FILE: `pip download` of a source package also builds its metadata, which takes up to
# minutes; this asks pip's own finder (its index, proxy and certificates) for the file alone.
fetch_sdist() {
  python3 - "$LLAMA_PACKAGE" "$LLAMA_SHA256" "$1" <<'PY'
import sys

from pip._internal.commands import create_command

name, sha256, path = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(["--no-binary", ":all:", name])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [candidate.link for candidate in finder.find_all_candidates(name)]
    link = next(link for link in links if link.hash == sha256)
    response = session.get(link.url, headers={"Accept-Encoding": "identity"}, stream=True)
    response.raise_for_status()
    with open(path, "wb") as out:
        for chunk in response.iter_content(1 << 20):
            out.write(chunk)
PY
}

# get_openai_client: sets OPENAI_PYTHON to a Python that has the official client of OpenAI's API.
get_openai_client() {
  local venv=$CACHE/openai-$OPENAI_VERSION
  OPENAI_PYTHON=$venv/bin/python
  [[ -x $OPENAI_PYTHON ]] && return 0
  say "installing the Python package openai $OPENAI_VERSION from PyPI"
  rm -rf "$venv.part"
  quietly "python3 -m venv failed (above)" python3 -m venv "$venv.part"
  quietly "pip could not install openai (above); check the network and 'pip config list'" \
    "$venv.part/bin/python" -m pip install --quiet --no-cache-dir "openai==$OPENAI_VERSION"
  mv -T "$venv.part" "$venv"
}

# get_sdist FILE: leaves the verified source package there.
get_sdist() {
  local sdist=$1 part=$1.part dir=$1.pip
  [[ -f $sdist ]] && has_sha256 "$sdist" "$LLAMA_SHA256" && return 0
  mkdir -p "$(dirname "$sdist")"
  say "downloading $LLAMA_PACKAGE $LLAMA_VERSION from PyPI (77 MB; llama.cpp's source)"
  if ! fetch_sdist "$part" 2>/dev/null || ! has_sha256 "$part" "$LLAMA_SHA256"; then
    rm -rf "$part" "$dir"
    mkdir "$dir"
    pip_download "$dir" "$LLAMA_PACKAGE==$LLAMA_VERSION" --no-binary :all:
    mv -f "$dir"/*.tar.gz "$part"
    rm -rf "$dir"
  fi
  if ! has_sha256 "$part" "$LLAMA_SHA256"; then
    rm -f "$part"
    fail "$LLAMA_PACKAGE $LLAMA_VERSION as downloaded has a wrong SHA-256; your package index serves another file"
  fi
  mv -f "$part" "$sdist"
}

# build_dependencies: builds static ggml, libllama and scripts/llama-parts once; sets LLAMA_PREFIX to
# where they are.
build_dependencies() {
  local key deps=$CACHE/deps
  key=$({
    echo "$LLAMA_SHA256" "${LLAMA_FLAGS[@]}"
    cat "$ROOT"/scripts/llama-parts/*
    "${CC:-cc}" --version
    "${CXX:-c++}" --version
    cpu_flags
  } | sha256sum | cut -c1-12)
  LLAMA_PREFIX=$deps/llama-$key
  [[ -d $LLAMA_PREFIX ]] && return 0
  mkdir -p "$deps" 2>/dev/null || fail "cannot write $CACHE; set VERICACHE_CACHE to a folder that you can write"
  exec 8>"$deps/lock"
  flock -n 8 || { say "waiting for another run that builds the same" && flock 8; }
  [[ -d $LLAMA_PREFIX ]] || make_prefix "$LLAMA_PREFIX" "$deps/work"
  exec 8>&-
}

# make_prefix PREFIX WORK: only a finished build is moved to PREFIX; WORK is thrown away.
make_prefix() {
  local prefix=$1 work=$2 start=$SECONDS sdist=$CACHE/downloads/$LLAMA_PACKAGE-$LLAMA_VERSION.tar.gz
  get_sdist "$sdist"
  say "building ggml and libllama for this CPU, once (about 3 minutes on 2 cores)"
  rm -rf "$work"
  mkdir -p "$work/src"
  tar -xzf "$sdist" -C "$work/src" --strip-components=3 \
    "$LLAMA_PACKAGE-$LLAMA_VERSION/vendor/llama.cpp" || fail "cannot unpack into $work; is the disk full?"
  use_ccache
  quietly "configuring llama.cpp failed (above)" \
    cmake -S "$work/src" -B "$work/build" -G Ninja "${LLAMA_FLAGS[@]}" \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_PROJECT_llama.cpp_INCLUDE="$ROOT/scripts/llama-parts/compile.cmake" \
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  compile "$work/build"
  quietly "configuring further parts of llama.cpp failed (above)" \
    cmake -S "$ROOT/scripts/llama-parts" -B "$work/parts" -G Ninja -DLLAMA_SOURCE="$work/src" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  compile "$work/parts"
  local built
  for built in build parts; do
    quietly "installing llama.cpp into the cache failed (above)" \
      cmake --install "$work/$built" --prefix "$work/prefix"
  done
  mv -T "$work/prefix" "$prefix"
  rm -rf "$work"
  say "built ggml and libllama in $((SECONDS - start)) s: $prefix"
}
