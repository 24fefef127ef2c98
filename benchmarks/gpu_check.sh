#!/usr/bin/env bash
# Checks a machine with one NVIDIA GPU in at most five minutes: `benchmarks/gpu_check.sh [python]`.
#
# Nothing is fetched where nothing can be: what the machine lacks may lie as wheels in `.whl/`. Prints one line a
# training and a SUMMARY; the exit status is 0 only if all weights were equal on every layout.
set -u
cd "$(dirname "$0")/.." || exit 2
python=${1:-python3}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
export PYTHONPATH="$PWD:$site" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 CUBLAS_WORKSPACE_CONFIG=:4096:8

missing=$("$python" - <<'PYTHON'
import importlib.util

wanted = {"pydantic": "pydantic", "ruamel.yaml": "ruamel.yaml", "numpy": "numpy", "safetensors": "safetensors",
          "obstore": "obstore", "structlog": "structlog", "google.protobuf": "protobuf", "grpc": "grpcio",
          "grpc_health": "grpcio-health-checking", "pytest": "pytest"}


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


print(*(package for name, package in wanted.items() if not is_there(name)))
PYTHON
)
if [ -n "$missing" ]; then
  echo "missing: $missing"
  if compgen -G ".whl/*.whl" >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" .whl/*.whl
  else
    # shellcheck disable=SC2086  # a list
    timeout 60 "$python" -m pip install -q --no-compile --target "$site" $missing || echo "not installed"
  fi
fi

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null

echo "== trainings on the GPU"
timeout 200 "$python" -m benchmarks.gpu_check --device "${DEVICE:-cuda}"
status=$?

echo "== unit tests with this torch, on the CPU"
timeout 80 "$python" -m pytest -o addopts= -o timeout=60 -q -x -p no:cacheprovider --import-mode=importlib \
  tests/unit/worker/test_split.py tests/unit/worker/test_determinism.py tests/unit/worker/test_offload.py \
  tests/unit/worker/test_sharding.py tests/unit/worker/test_layouts.py 2>&1 | tail -n 15
echo "unit tests: ${PIPESTATUS[0]}"
echo "trainings: $status"
exit "$status"
