#!/usr/bin/env bash
# The tests that need a GPU, then the quick measurements, in under nine minutes. Run it again to measure what is left.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH} TRITON_INTERPRET=0

"$python" -c 'import torch'
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "There is no GPU here, so nothing was tested or measured." >&2
    exit 2
fi

workers=()  # most of a test is compiling, on the CPU
if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n 8); fi

status=0
timeout 220 "$python" -m pytest -q --maxfail 25 -p no:cacheprovider "${workers[@]}" tests/gpu || status=$?
timeout 300 "$python" -m bench.run --quick --seconds 235 || status=$?
exit "$status"
