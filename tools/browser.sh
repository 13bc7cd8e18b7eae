#!/usr/bin/env bash
# Debian's Chromium and axe-core, for `make browser` and `make screenshots`. Where apt is absent, a message and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "browser: no apt-get here; install Chromium and its driver by hand to run these tests"
    exit 0
  fi
  become=""
  [ "$(id -u)" = 0 ] || become=sudo
  $become apt-get update -q
  $become env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium chromium-driver fonts-dejavu-core
fi
mkdir -p build/axe
if [ ! -f build/axe/node_modules/axe-core/axe.min.js ]; then
  command -v npm >/dev/null || { echo "browser: no npm here; axe-core cannot be installed"; exit 1; }
  npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.0
fi
