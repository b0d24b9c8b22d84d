"""Files to sentences and back: strict readers, builders of joined corpora, the store, and export."""

from mtlprune.errors import MtlpruneError


class CorpusError(MtlpruneError):
    """A corpus file is not what was expected; the message says where, what was expected, what was found, what to do."""
