#!/usr/bin/env bash
# Installs what the build needs and the machine lacks. Debian and Ubuntu: with apt-get; elsewhere it only says what to install.
#   scripts/bootstrap.sh          compiler, CMake and libraries
#   scripts/bootstrap.sh --dev    the pinned formatter and linter too
#   scripts/bootstrap.sh --browser  Chromium too, for the dashboard's tests
#   scripts/bootstrap.sh --check  installs nothing; exits 1 when something is missing
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev libhwloc-dev
  liburing-dev libxxhash-dev libcurl4-openssl-dev libssl-dev libpng-dev libboost-dev libeigen3-dev libgtest-dev)
check=0
for argument in "$@"; do
  case "$argument" in
    --dev) packages+=(clang-format-14 clang-tidy-14) ;;
    --browser) packages+=(chromium) ;;
    --check) check=1 ;;
    *) echo "bootstrap: unknown argument '$argument' (known: --dev, --browser, --check)" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "bootstrap: not a Debian or Ubuntu system; these Debian packages, under the names of your system, are needed:" >&2
  echo "  ${packages[*]}" >&2
  echo "bootstrap: going on; CMake (3.25 or newer) says what it does not find" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "bootstrap: all packages are installed"
  exit 0
fi
echo "bootstrap: missing: ${missing[*]}"
[ $check -eq 0 ] || exit 1

root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "bootstrap: not root and no sudo; as root run: apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  root=(sudo)
fi
echo "bootstrap: installing them with apt-get"
"${root[@]}" apt-get update -q
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
