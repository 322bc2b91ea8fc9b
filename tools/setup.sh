# Sourced by tools/demo.sh and tests/run.sh: brings a Debian 12 machine with git, bash and Python 3.11 to a built tree. Each part is
# skipped when its result stands already. Sets ROOT and PYTHON.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="$ROOT/.venv/bin/python"
TORCH_VERSION="${VRAMLEDGER_TORCH_VERSION:-2.11.0}"

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# torchvision_for TORCH: the release that says it goes with it. Up to 0.29.0 that is one torch exactly; 0.29.1 and 0.29.2 take 2.14 and newer.
torchvision_for() {
  case "$1" in
    2.11.*) echo 0.26.0 ;;
    2.12.*) echo 0.27.1 ;;
    2.13.*) echo 0.28.0 ;;
    2.14.* | 2.15.*) echo 0.29.2 ;;
    *) die "vramledger was not tested with PyTorch $1: set VRAMLEDGER_TORCH_VERSION to 2.11.0, 2.12.1, 2.13.0, 2.14.1 or 2.15.0" ;;
  esac
}

DEBIAN_PACKAGES=(g++ cmake ninja-build ccache pkg-config binutils libabsl-dev libonnx-dev libprotobuf-dev libcli11-dev nlohmann-json3-dev libzstd-dev zlib1g-dev libgtest-dev libbenchmark-dev)
# transformers and torchvision are for the demo's models, peft for a script of the tests' matrix, numpy for torch's own use of it.
PYTHON_PACKAGES=("torch==$TORCH_VERSION" "torchvision==$(torchvision_for "$TORCH_VERSION")" "transformers==5.24.0" "peft==0.21.2" numpy pytest)

install_debian_packages() {
  local missing=() package
  for package in "${DEBIAN_PACKAGES[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=()
  [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null || die "installing ${missing[*]} needs root or sudo"; sudo=(sudo); }
  say "installing Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

find_python() {
  local candidate
  for candidate in python3.11 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 was not found"
}

# On a terminal pip shows what it downloads; in a log its lines would be in the way.
pip_install() {
  local quiet=(-q)
  [ ! -t 1 ] || quiet=()
  "$PYTHON" -m pip install "${quiet[@]}" --disable-pip-version-check "$@"
}

install_python_packages() {
  local stamp="$ROOT/.venv/.vramledger-packages" wanted="${PYTHON_PACKAGES[*]}"
  if [ ! -x "$PYTHON" ] || ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    local base
    base="$(find_python)"
    say "making the Python environment .venv"
    rm -rf "$ROOT/.venv"
    if ! "$base" -m venv "$ROOT/.venv" 2>/dev/null; then
      DEBIAN_PACKAGES+=(python3-venv)
      install_debian_packages
      "$base" -m venv "$ROOT/.venv"
    fi
  fi
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "downloading and installing Python packages: $wanted (with CUDA's libraries about 5 GB on disk; this takes some minutes)"
    local began=$SECONDS
    # Apart, because a torchvision that pins another release of the same line (0.27.1 pins 2.12.1) would bring that one.
    pip_install "${PYTHON_PACKAGES[@]/torchvision*/pillow}"
    pip_install --no-deps "${PYTHON_PACKAGES[1]}"
    printf '%s' "$wanted" >"$stamp"
    say "installed in $((SECONDS - began)) s: .venv takes $(du -sh "$ROOT/.venv" | cut -f1)"
  fi
}

# build [TARGET...]: all of it when no target is named.
build() {
  local site targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  site="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
  say "building${1:+ $*}"
  cmake --preset release -DVRAMLEDGER_SITE_PACKAGES="$site" >"$ROOT/.cmake.log" 2>&1 || { cat "$ROOT/.cmake.log"; die "cmake failed"; }
  cmake --build build "${targets[@]}" || die "the build failed"
}

install_vramledger() {
  if ! "$PYTHON" -c 'import vramledger' 2>/dev/null; then
    say "installing the package vramledger into .venv"
    pip_install --no-deps -e "$ROOT"
  fi
}

# set_up [TARGET...]
set_up() {
  install_debian_packages
  install_python_packages
  (cd "$ROOT" && build "$@")
  install_vramledger
}
