#!/bin/sh
# Usage: chromium.sh PYTHON - makes sure that the browser tests find a Chromium.
# One in PATH will do; else Debian's package; else the one Playwright downloads for itself.
set -u
python=$1

for name in chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if "$python" - <<'PYTHON'
import pathlib, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    sys.exit(not pathlib.Path(playwright.chromium.executable_path).exists())
PYTHON
then exit 0; fi

as_root=
if [ "$(id -u)" != 0 ]; then as_root="sudo -n"; fi
if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
    echo "Installing Chromium with apt-get for the browser tests" >&2
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get install -qq -y --no-install-recommends chromium fonts-liberation >/dev/null ||
        { $as_root apt-get update -qq &&
            $as_root apt-get install -qq -y --no-install-recommends chromium fonts-liberation >/dev/null; }
    if command -v chromium >/dev/null; then exit 0; fi
fi
echo "Installing Playwright's Chromium for the browser tests" >&2
"$python" -m playwright install chromium
