#!/usr/bin/env bash
# Set up released SGLangs that serve a tiny model on a CPU, for the tests marked `sglang`.
#
#     scripts/real_sglang.sh [FOLDER]        FOLDER is .sglang in the checkout by default
#
# FOLDER/python-VERSION is a Python that has that SGLang, FOLDER/models/tiny a model for it. The
# second run does nothing unless the lists it is made from have changed. 2.5 GB on disk.
set -euo pipefail
umask 022
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$checkout/.sglang}"
folder=$(cd "${1:-$checkout/.sglang}" && pwd)
stand_ins=$checkout/tests/real/stand_ins
versions=(0.5.15 0.5.23)

sources=("$checkout/tests/real/requirements.txt" "$checkout/tests/real/tiny_models.py" "$0")
made_from=$(cat "${sources[@]}" | sha256sum; echo "$folder" "$checkout")
if [ "$(cat "$folder/made_from" 2>/dev/null)" = "$made_from" ]; then
  exit 0
fi
rm -rf "${folder:?}"/{venv,models,made_from,0.5.*,python-*}
echo '*' > "$folder/.gitignore"

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq -r "$checkout/tests/real/requirements.txt"
for version in "${versions[@]}"; do
  "$folder/venv/bin/pip" install -qq --no-deps --target "$folder/$version" "sglang==$version"
  # Only 0.5.23 speculates on a CPU; it needs kernels in place of sgl_kernel's, the other one
  # operation in place of vLLM's.
  if [ "$version" = 0.5.23 ]; then
    kernels=$stand_ins/sgl_kernel_cpu cpu_engine=1
  else
    kernels=$stand_ins/vllm_rotary_only cpu_engine=0
  fi
  # Importing all models takes a third of a start; two are kept, one of which does not import.
  models=$(cd "$folder/$version/sglang/srt/models" && ls -- *.py)
  skipped=$(sed 's/\.py$//' <<< "$models" | grep -vxE '__init__|registry|utils|llama|pixtral' | paste -sd,)
  cat > "$folder/python-$version" <<WRAPPER
#!/bin/sh
export PYTHONPATH="$folder/$version:$kernels:$stand_ins/torchvision_names"
export SGLANG_USE_CPU_ENGINE=$cpu_engine SGLANG_DISABLED_MODEL_ARCHS=$skipped
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
exec "$folder/venv/bin/python" "\$@"
WRAPPER
  chmod +x "$folder/python-$version"
done
"$folder/venv/bin/python" "$checkout/tests/real/tiny_models.py" "$folder/models" 2>/dev/null
printf '%s\n' "$made_from" > "$folder/made_from"
