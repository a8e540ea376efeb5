"""The batches with which language models were trained: what a global batch is compared with."""

from __future__ import annotations

from wavecast.planning.cost import TOKENS
from wavecast.traces.step import Trace

PUBLISHED = (
    (1.3e9, 1.0e6, "GPT-3 XL (Brown et al., 2020, table 2.1)"),
    (13e9, 4.0e6, "Llama 2 7B and 13B (Touvron et al., 2023, section 2.2)"),
    (70e9, 4.0e6, "Llama 2 70B (Touvron et al., 2023, section 2.2)"),
    (405e9, 16.0e6, "Llama 3 405B (Grattafiori et al., 2024, section 3.4.1)"),
    (1e13, 62.9e6, "DeepSeek-V3 (2024, section 4.2: 15,360 sequences of 4,096 tokens)"),
)
"""The largest batch, in tokens, that was published for models of at most so many parameters."""


def batch_warning(trace: Trace, global_batch: int, samples: int) -> str | None:
    """A sentence if a global batch is larger than such models are known to be trained with.

    Args:
        trace: one micro-batch.
        global_batch: the sequences of one optimizer step.
        samples: the sequences of the trace.
    """
    if trace.unit != TOKENS or trace.samples is None:
        return None
    tokens = global_batch * trace.samples / samples
    sizes = {v.parameter: v.spec.numel for v in trace.values if v.parameter}
    parameters = sum(sizes.values())
    # Names round the number of parameters: Llama 2 13B has 13.0 billion, and Llama 3 8B has 8.03.
    batch, source = next((b, s) for most, b, s in PUBLISHED if parameters <= 1.1 * most)
    if not parameters or tokens <= 1.1 * batch:  # 4 million is also said of 2^22
        return None
    return (
        f"the global batch has {tokens / 1e6:.1f} million tokens; the largest published for a "
        f"model of this size has {batch / 1e6:.1f} million ({source}), and a larger one may need "
        "more tokens to reach the same loss"
    )
