"""`mtlprune encoders`: lists the families of encoders, or describes the encoder at a name or folder."""

from typing import Annotated

import typer

from mtlprune.cli.console import console, new_table


def encoders(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENCODER]", help="Name of an encoder on the Hugging Face hub, a local folder, minilm or mpnet."
        ),
    ] = None,
) -> None:
    """List the families of encoders and what each family supports. With ENCODER, describe that encoder."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    from mtlprune.encoder.abilities import Abilities, abilities, table

    grid = new_table(None, *Abilities._fields)
    if name is None:
        for row in table():
            grid.add_row(*row)
        console().print(grid)
        if missing_families := [row.family for row in table() if row.family not in CONFIG_MAPPING_NAMES]:
            typer.echo(f"The installed version of transformers does not have {', '.join(missing_families)}.")
        typer.echo("Other encoders of transformers can be trained, but without gates and analyses of heads.")
        return

    from mtlprune.encoder.families import FAMILIES
    from mtlprune.encoder.model import Encoder
    from mtlprune.encoder.sources import locate

    encoder = Encoder.load(name, random=True)
    kind, words = encoder.config.model_type, encoder.word_pieces
    to_tokens = encoder.tokenizer.convert_ids_to_tokens
    typer.echo(f"{name}: {kind}, {locate(name)}")
    if kind not in FAMILIES:
        typer.echo(
            "This encoder can be trained, but without gates and analyses of heads, because mtlprune does not know "
            "where its heads are."
        )
        return
    hooks = encoder.head_hooks
    size = f"{hooks.layers} layers × {hooks.heads}, each {hooks.width} wide, hidden size {encoder.hidden_size}"
    before, after = (" ".join(to_tokens(list(ids))) for ids in (words.before, words.after))
    typer.echo(f"heads: {size}")
    if text := encoder.remarks():
        typer.echo(text)
    typer.echo(f"sub-words at once: {encoder.limit}; around a sentence: {before} and {after}")
    typer.echo(f"word dropout: {to_tokens(words.mask)}")
    grid.add_row(*abilities(kind))
    console().print(grid)
