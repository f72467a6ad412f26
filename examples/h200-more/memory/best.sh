#!/bin/sh
# only the baseline was measured: 408.6 output_tok_s
python -m sglang.launch_server \
  --model-path /models/target \
  --attention-backend triton \
  --cuda-graph-max-bs-decode 16 \
  --disable-prefill-cuda-graph \
  --grammar-backend none \
  --max-running-requests 16 \
  --mem-fraction-static 0.5 \
  --sampling-backend pytorch
