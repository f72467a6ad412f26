#!/usr/bin/env bash
# Set up released SGLangs that serve a tiny model on a CPU, for the tests marked `sglang`.
#
#     scripts/real_sglang.sh [FOLDER]        FOLDER is .sglang in the checkout by default
#
# FOLDER/python-VERSION is a Python that has that SGLang, and before it what SWEEPER_TEST_PATH
# names; FOLDER/VERSION is that SGLang itself, FOLDER/models/tiny a model for it. The
# second run does nothing unless the lists it is made from have changed. 2.5 GB on disk.
set -euo pipefail
umask 022
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$checkout/.sglang}"
folder=$(cd "${1:-$checkout/.sglang}" && pwd)
stand_ins=$checkout/tests/real/stand_ins
versions=(0.5.15 0.5.17 0.5.23)

sources=("$checkout/tests/real/requirements.txt" "$checkout/tests/real/tiny_models.py"
  "$checkout/tests/draft_tp/tiny_eagle3.py" "$0")
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
  # 0.5.15 does not speculate on a CPU; it needs one operation in place of vLLM's, the others
  # kernels in place of sgl_kernel's.
  if [ "$version" = 0.5.15 ]; then
    kernels=$stand_ins/vllm_rotary_only cpu_engine=0
  else
    kernels=$stand_ins/sgl_kernel_cpu cpu_engine=1
  fi
  # Importing all models takes a third of a start; a few are kept, one of which does not import.
  models=$(cd "$folder/$version/sglang/srt/models" && ls -- *.py)
  skipped=$(sed 's/\.py$//' <<< "$models" | grep -vxE '__init__|registry|utils|llama|llama_eagle|llama_eagle3|pixtral' | paste -sd,)
  cat > "$folder/python-$version" <<WRAPPER
#!/bin/sh
export PYTHONPATH="\${SWEEPER_TEST_PATH:+\$SWEEPER_TEST_PATH:}$folder/$version:$kernels:$stand_ins/torchvision_names"
export SGLANG_USE_CPU_ENGINE=$cpu_engine SGLANG_DISABLED_MODEL_ARCHS=$skipped
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
exec "$folder/venv/bin/python" "\$@"
WRAPPER
  chmod +x "$folder/python-$version"
done
"$folder/venv/bin/python" "$checkout/tests/real/tiny_models.py" "$folder/models" 2>/dev/null
"$folder/venv/bin/python" "$checkout/tests/draft_tp/tiny_eagle3.py" "$folder/models/eagle3" 2>/dev/null
printf '%s\n' "$made_from" > "$folder/made_from"
