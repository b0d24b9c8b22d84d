"""Write MiniLM with fewer feed-forward units, for E1 (results/fight/PLAN.md) and DEP (results/why/PLAN.md).

    python experiments/fight/narrow.py runs/narrow [--units 384] [--seed 1]

The units that stay are drawn by the seed, others in every layer; weights are not rescaled, as closed heads are not.
"""

import argparse

import torch
from transformers import AutoModel, AutoTokenizer

from mtlprune.encoder.sources import locate


def main(out: str, units: int, seed: int) -> None:
    """Cut the feed-forward layers of MiniLM (1,536 units each), and save encoder and tokenizer in ``out``."""
    source = locate("minilm")
    model, generator = AutoModel.from_pretrained(source), torch.Generator().manual_seed(seed)
    for layer in model.encoder.layer:
        kept = torch.randperm(model.config.intermediate_size, generator=generator)[:units].sort().values
        wide, back = layer.intermediate.dense, layer.output.dense
        for part, weight in ((wide, wide.weight[kept]), (back, back.weight[:, kept])):
            part.weight = torch.nn.Parameter(weight.detach().clone())
        wide.bias = torch.nn.Parameter(wide.bias[kept].detach().clone())
    model.config.intermediate_size = units
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--units", type=int, default=384)
    parser.add_argument("--seed", type=int, default=1)
    main(**vars(parser.parse_args()))
