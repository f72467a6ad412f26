#!/bin/sh
# only the baseline was measured: 345.4 tok/s
python -m sglang.launch_server \
  --model-path /models/target \
  --attention-backend triton \
  --cuda-graph-bs-decode 1 \
  --disable-prefill-cuda-graph \
  --grammar-backend none \
  --max-running-requests 16 \
  --mem-fraction-static 0.5 \
  --sampling-backend pytorch
