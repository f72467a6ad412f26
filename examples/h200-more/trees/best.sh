#!/bin/sh
# steps=2 topk=4 draft_tokens=8 beats the baseline: 533.1 against 404.2 output_tok_s, +31.9 % (95 % interval +20.2 to +44.8 %)
python -m sglang.launch_server \
  --model-path /models/target \
  --attention-backend triton \
  --cuda-graph-max-bs-decode 16 \
  --disable-prefill-cuda-graph \
  --grammar-backend none \
  --max-running-requests 16 \
  --mem-fraction-static 0.5 \
  --sampling-backend pytorch \
  --speculative-algorithm EAGLE3 \
  --speculative-draft-model-path /models/draft \
  --speculative-eagle-topk 4 \
  --speculative-num-draft-tokens 8 \
  --speculative-num-steps 2
