#!/usr/bin/env bash
# Builds the documentation site into target/site and fails on broken links, anchors and stale lists. Needs Python 3 with venv; the
# virtual environment stays in target/docs-venv. `docs/build.sh serve` serves the site at http://127.0.0.1:8000 while you write.
# Exit code 75: MkDocs is not installed and PyPI cannot be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/docs-venv
if ! cmp -s docs/requirements.txt "$venv/requirements.txt"; then
  python3 -m venv --clear "$venv"
  pip() { "$venv/bin/pip" "$@" --quiet --disable-pip-version-check; }
  if ! pip install --requirement docs/requirements.txt; then
    # Without any package from PyPI the requirements are not to blame.
    pip download --no-deps --dest target/docs-venv/probe pip && exit 1
    exit 75
  fi
  cp docs/requirements.txt "$venv/requirements.txt"
fi
export NO_MKDOCS_2_WARNING=1
"$venv/bin/python" docs/check.py
if [ "${1:-}" = serve ]; then exec "$venv/bin/mkdocs" serve; fi
"$venv/bin/mkdocs" build --strict
echo "the site is in target/site"
