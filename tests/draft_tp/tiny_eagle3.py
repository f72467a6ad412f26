"""TEST USE ONLY: write a tiny target and an EAGLE-3 draft that is right about half of the time.

    python tiny_eagle3.py FOLDER

FOLDER/target answers with a fixed map of its last token, next = f(token), blurred by layers with
random weights. FOLDER/draft sees the state of the token before, and predicts f(f(token)) from it,
so that its first token of each round is mostly right and the later ones are mostly wrong; two
thirds of the vocabulary are known to it. Needs torch and transformers; run with the Python that
`scripts/real_sglang.sh` sets up.
"""

# mypy: ignore-errors
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, DRAFT_VOCAB, HIDDEN, HEADS, LAYERS = 500, 330, 256, 4, 4
#: How much the layers' random weights blur the map.
BLUR = 0.35


def config(**more) -> dict:
    """Return what both models' configurations share."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **more,
    }


def main(root: Path) -> None:
    """Write both."""
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **config()))
    embedding = torch.nn.functional.normalize(torch.randn(VOCAB, HIDDEN), dim=1) * HIDDEN**0.5
    after = torch.randperm(VOCAB)
    head = torch.zeros(VOCAB, HIDDEN)
    head[after] = embedding / HIDDEN**0.5
    with torch.no_grad():
        for name, weight in target.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.normal_(0, BLUR / HIDDEN**0.5)
            elif weight.dim() == 2:
                weight.normal_(0, 1 / HIDDEN**0.5)
        target.model.embed_tokens.weight.copy_(embedding)
        target.lm_head.weight.copy_(head)
    target.save_pretrained(root / "target")

    known = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    both = torch.zeros(VOCAB, HIDDEN)
    both[after[after]] = embedding / HIDDEN**0.5

    def random(rows, columns, scale=1.0):
        return torch.randn(rows, columns) * scale / columns**0.5

    last = torch.cat([torch.zeros(HIDDEN, 2 * HIDDEN), torch.eye(HIDDEN)], dim=1)
    weights = {
        "fc.weight": last,
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": both[known],
        "d2t": known - torch.arange(DRAFT_VOCAB),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "midlayer.input_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "midlayer.self_attn.q_proj.weight": random(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": random(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": random(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": random(HIDDEN, HIDDEN, BLUR),
        "midlayer.mlp.gate_proj.weight": random(2 * HIDDEN, HIDDEN),
        "midlayer.mlp.up_proj.weight": random(2 * HIDDEN, HIDDEN),
        "midlayer.mlp.down_proj.weight": random(HIDDEN, 2 * HIDDEN, BLUR),
    }
    folder = root / "draft"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    described = config(
        architectures=["LlamaForCausalLMEagle3"],
        model_type="llama",
        num_hidden_layers=1,
        draft_vocab_size=DRAFT_VOCAB,
        hidden_act="silu",
        rms_norm_eps=1e-6,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    )
    (folder / "config.json").write_text(json.dumps(described))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
