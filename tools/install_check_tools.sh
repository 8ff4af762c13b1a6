#!/bin/sh
# Installs what tests need beyond the project's own tools: for the kernels a cross compiler, an emulator and clang, for the
# page a browser, for the metrics promtool.
# Exit status 1: something is missing and can't be installed here; says what.
set -eu
missing=""
for tool in aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64:qemu-user clang++:clang chromium:chromium promtool:prometheus; do
  command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool#*:}"
done
[ -n "$missing" ] || { echo "make test-tools: all there"; exit 0; }
if ! command -v apt-get >/dev/null; then
  echo "make test-tools: missing here:$missing (Debian's names). There is no apt-get; install them by other means." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "make test-tools: missing here:$missing. Only root can install them: sudo make test-tools" >&2
  exit 1
fi
apt-get -o DPkg::Lock::Timeout=300 -qq update
# shellcheck disable=SC2086  # a list of packages
DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends $missing >/dev/null
echo "make test-tools: installed$missing"
