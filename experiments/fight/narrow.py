"""Write MiniLM with a quarter of its feed-forward width, the control of E1 (results/fight/PLAN.md).

    python experiments/fight/narrow.py runs/narrow

The units that stay are drawn by seed 1, others in every layer; weights are not rescaled, as closed heads are not.
"""

import sys

import torch
from transformers import AutoModel, AutoTokenizer

from mtlprune.encoder.sources import locate

SHARE, SEED = 0.25, 1


def main(out: str) -> None:
    """Cut the feed-forward layers, and save encoder and tokenizer in ``out``."""
    source = locate("minilm")
    model, generator = AutoModel.from_pretrained(source), torch.Generator().manual_seed(SEED)
    width = int(SHARE * model.config.intermediate_size)
    for layer in model.encoder.layer:
        kept = torch.randperm(model.config.intermediate_size, generator=generator)[:width].sort().values
        wide, back = layer.intermediate.dense, layer.output.dense
        for part, weight in ((wide, wide.weight[kept]), (back, back.weight[:, kept])):
            part.weight = torch.nn.Parameter(weight.detach().clone())
        wide.bias = torch.nn.Parameter(wide.bias[kept].detach().clone())
    model.config.intermediate_size = width
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1])
