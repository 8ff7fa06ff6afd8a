#!/usr/bin/env bash
# The tests that need a GPU, then the quick measurements, in under nine minutes. Run it again to measure what is left;
# with the argument "measure", without the tests. BENCH_RESULTS names another folder for what is found.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH} TRITON_INTERPRET=0
export BENCH_RESULTS=${BENCH_RESULTS:-$PWD/bench/results}

"$python" -c 'import torch'
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "There is no GPU here, so nothing was tested or measured." >&2
    exit 2
fi

status=0
if [ "${1:-}" != measure ]; then
    mkdir -p "$BENCH_RESULTS"
    workers=()  # most of a test is compiling, on the CPU
    if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n "$(($(nproc) < 16 ? $(nproc) : 16))" --dist worksteal); fi
    # Interrupted, pytest still says what failed.
    timeout -s INT -k 15 220 "$python" -m pytest -q -rf --cases 9 --tb short --maxfail 25 -p no:cacheprovider \
        --junitxml "$BENCH_RESULTS/gpu-tests.xml" "${workers[@]}" tests/gpu || status=$?
fi
timeout -s INT -k 15 285 "$python" -m bench.run --quick --seconds 235 || status=$?
exit "$status"
