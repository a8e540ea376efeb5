"""Small changes to the steps of examples/check, and the verdict that each deserves.

The verdicts and reasons were written down before the check was run on any of them. Where the check
said something else, `surprise` says what and why, and the table of the documents shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples" / "check" / "steps.py"
WORSE, BETTER, IGNORED = "worse", "better", "within tolerance"


@dataclass(frozen=True)
class Change:
    """A change of the code: some lines are replaced by others."""

    what: str
    target: str
    edits: tuple[tuple[str, str], ...]
    verdict: str
    why: str
    """The reason for the verdict."""
    figures: tuple[str, ...] = ()
    """Figures that must be among those that got worse, or better."""
    surprise: str = ""
    """What the check says instead of the verdict that was expected, and why."""
    found: str = ""
    """The verdict of the check, where it is another than expected."""

    def source(self) -> str:
        """The file of steps with this change."""
        text = SOURCE.read_text(encoding="utf-8")
        for old, new in self.edits:
            assert text.count(old) >= 1, f"{self.what}: {old!r} is not in {SOURCE.name}"
            text = text.replace(old, new)
        return text


MANUAL_ATTENTION = """\
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
"""

VISION = (
    Change(
        "a wider network",
        "vision",
        (("width: int = 128, classes", "width: int = 160, classes"),),
        WORSE,
        "each convolution does 1.6 times the work",
        ("time", "memory"),
    ),
    Change(
        "channels last is lost",
        "vision",
        ((".to(memory_format=torch.channels_last)", ""),),
        WORSE,
        "tensor cores want channels last, so cuDNN transposes",
        ("time",),
    ),
    Change(
        "autocast is lost",
        "vision",
        (
            (
                "            loss = F.cross_entropy(model(x), y)",
                "            pass\n        loss = F.cross_entropy(model(x), y)",
            ),
        ),
        WORSE,
        "float32 convolutions, and activations twice as large",
        ("time", "memory"),
    ),
    Change(
        "one block falls back to float32",
        "vision",
        (
            (
                "        features = self.blocks(self.stem(images))\n",
                '        with torch.autocast("cuda", enabled=False):\n'
                "            x = self.blocks[0](self.stem(images).float())\n"
                "        features = self.blocks[1:](x)\n",
            ),
        ),
        WORSE,
        "a quarter of the convolutions runs in float32",
        ("time", "memory"),
    ),
    Change(
        "the loss is read in every step",
        "vision",
        (
            (
                "        optimizer.step()\n\n    return step\n\n\nclass Block",
                "        optimizer.step()\n        loss.item()\n\n    return step\n\n\nclass Block",
            ),
        ),
        WORSE,
        "the host waits for the GPU in every step",
        ("waits",),
    ),
    Change(
        "batches are not pinned, copies wait",
        "vision",
        ((".pin_memory()", ""), (", non_blocking=True", "")),
        WORSE,
        "two copies for which the host waits",
        ("waits",),
    ),
    Change(
        "a larger batch",
        "vision",
        (
            (
                "def vision(batch: int = 64) -> Step:\n",
                "def vision(batch: int = 64) -> Step:\n    batch = 80\n",
            ),
        ),
        WORSE,
        "a quarter more work and memory in a step",
        ("time", "memory"),
    ),
    Change(
        "activations no longer in place",
        "vision",
        (("nn.ReLU(inplace=True)", "nn.ReLU()"),),
        WORSE,
        "each activation needs memory of its own",
        ("memory",),
        surprise="autograd keeps only the result of a ReLU, so the peak is the same",
        found=IGNORED,
    ),
    Change(
        "the output of the first layer is cloned",
        "vision",
        (("self.blocks(self.stem(images))", "self.blocks(self.stem(images).clone())"),),
        WORSE,
        "16 MB in, 16 MB out, and the same again in the backward pass",
        ("time",),
        surprise="the backward pass of a clone copies nothing: 0.8% on the L4",
        found=IGNORED,
    ),
    Change(
        "the predicted classes are cloned",
        "vision",
        (
            (
                "return self.head(features.mean((2, 3)))",
                "return self.head(features.mean((2, 3))).clone()",
            ),
        ),
        IGNORED,
        "1 kB is copied",
    ),
    Change(
        "dropout before the last layer",
        "vision",
        (("self.head(features.mean((2, 3)))", "self.head(F.dropout(features.mean((2, 3)), 0.1))"),),
        IGNORED,
        "a few kernels on 16 kB",
    ),
    Change(
        "layers are created in another order",
        "vision",
        (
            (
                "        self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))\n"
                "        self.head = nn.Linear(width, classes)\n",
                "        self.head = nn.Linear(width, classes)\n"
                "        self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))\n",
            ),
        ),
        IGNORED,
        "they are called in the same order",
    ),
    Change(
        "a module is renamed",
        "vision",
        (("self.blocks", "self.stages"),),
        IGNORED,
        "the ops are the same",
    ),
    Change(
        "a comment",
        "vision",
        (
            (
                "    def step() -> None:\n        x = images",
                "    # One step.\n    def step() -> None:\n        x = images",
            ),
        ),
        IGNORED,
        "nothing runs that did not run before",
    ),
    Change(
        "another learning rate",
        "vision",
        (("lr=0.1, momentum=0.9", "lr=0.05, momentum=0.9"),),
        IGNORED,
        "a number, not an op",
    ),
)

LANGUAGE = (
    Change(
        "attention is no longer fused",
        "language",
        (
            (
                "        return F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
                MANUAL_ATTENTION,
            ),
        ),
        WORSE,
        "scores of all pairs of tokens are written and read",
        ("time",),
    ),
    Change(
        "checkpointing is off",
        "language",
        (("x = checkpoint(block, x, use_reentrant=False)", "x = block(x)"),),
        WORSE,
        "activations of all blocks are kept, though less is computed",
        ("memory",),
    ),
    Change(
        "the optimizer is not fused",
        "language",
        ((", fused=True", ""),),
        WORSE,
        "weights and states are read and written by a dozen kernels instead of one",
        ("time",),
    ),
    Change(
        "the optimizer updates one tensor at a time",
        "language",
        ((", fused=True", ", foreach=False"),),
        WORSE,
        "a dozen kernels for each of 77 tensors, which the host must launch",
        ("host time",),
    ),
    Change(
        "gradients are clipped",
        "language",
        (
            (
                "        loss.backward()\n        optimizer.step()\n"
                "\n    return step\n\n\nclass Ranker",
                "        loss.backward()\n"
                "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
                "        optimizer.step()\n\n    return step\n\n\nclass Ranker",
            ),
        ),
        WORSE,
        "all gradients are read twice and written once more",
        ("time",),
    ),
    Change(
        "the loss is computed in float32",
        "language",
        (("logits.flatten(0, 1)", "logits.flatten(0, 1).float()"),),
        IGNORED,
        "autocast does that anyway",
        ("time", "memory"),
        surprise="autocast leaves the softmax of a cross entropy in bfloat16, so float32 costs 13%",
        found=WORSE,
    ),
    Change(
        "positions are made on the host",
        "language",
        (
            (
                "torch.arange(tokens.shape[1], device=tokens.device)",
                "torch.arange(tokens.shape[1]).to(tokens.device)",
            ),
        ),
        WORSE,
        "the host waits for the copy",
        ("waits",),
    ),
    Change(
        "input and output embeddings are no longer tied",
        "language",
        (("        self.head.weight = self.words.weight\n", ""),),
        WORSE,
        "8 million weights more, each with a gradient and two states",
        ("memory",),
    ),
    Change(
        "dropout after each block",
        "language",
        (
            ("return x + self.down(F.gelu(", "return x + F.dropout(self.down(F.gelu("),
            ("(self.inner_norm(x))))", "(self.inner_norm(x)))), 0.1)"),
        ),
        WORSE,
        "masks are drawn, stored and applied in six blocks, twice",
        ("time",),
    ),
    Change(
        "linear layers without bias",
        "language",
        (
            ("nn.Linear(width, 3 * width)", "nn.Linear(width, 3 * width, bias=False)"),
            ("nn.Linear(width, 4 * width)", "nn.Linear(width, 4 * width, bias=False)"),
            ("nn.Linear(4 * width, width)", "nn.Linear(4 * width, width, bias=False)"),
            ("nn.Linear(width, width)", "nn.Linear(width, width, bias=False)"),
        ),
        BETTER,
        "the sums that make the gradients of 24 biases are gone",
        ("time",),
    ),
    Change(
        "a few more words",
        "language",
        (("words: int = 16000", "words: int = 16128"),),
        IGNORED,
        "0.8% more work in the last layer alone",
    ),
)

RANKING = (
    Change(
        "one more layer",
        "ranking",
        (
            (
                "        self.score = nn.Linear(256, 1)\n",
                "        self.more = nn.Linear(256, 256)\n        self.score = nn.Linear(256, 1)\n",
            ),
            (
                "self.score(torch.relu(self.middle(x)))",
                "self.score(torch.relu(self.more(torch.relu(self.middle(x)))))",
            ),
        ),
        WORSE,
        "more ops in a step that the host limits",
        ("time",),
    ),
    Change(
        "the loss is checked for NaN",
        "ranking",
        (
            (
                "model(categories, numbers), clicks)\n        loss.backward()\n",
                "model(categories, numbers), clicks)\n"
                "        if loss.isnan():\n            return\n        loss.backward()\n",
            ),
        ),
        WORSE,
        "the host waits for the answer before it issues the backward pass",
        ("time", "waits"),
    ),
    Change(
        "SGD instead of Adam",
        "ranking",
        (("torch.optim.Adam(model.parameters())", "torch.optim.SGD(model.parameters(), lr=0.1)"),),
        BETTER,
        "no states to keep and fewer passes over the weights",
        ("time", "memory"),
    ),
    Change(
        "wider embeddings",
        "ranking",
        (("rows: int = 20000, width: int = 64", "rows: int = 20000, width: int = 96"),),
        WORSE,
        "weights, gradients and states of the tables grow by half",
        ("memory",),
    ),
    Change(
        "a type annotation and a docstring",
        "ranking",
        (
            (
                "    def forward(self, categories: Any, numbers: Any) -> Any:\n        found = [",
                "    def forward(self, categories: Any, numbers: Any) -> Any:\n"
                '        """The scores."""\n        found: list[Any] = [',
            ),
        ),
        IGNORED,
        "nothing runs that did not run before",
    ),
)

CHANGES = (*VISION, *LANGUAGE, *RANKING)


def table() -> str:
    """The changes as a table for the documents."""
    lines = ["| change | step | expected | because | found |", "|---|---|---|---|---|"]
    for change in CHANGES:
        found = change.found or change.verdict
        said = f"{found}: {change.surprise}" if change.surprise else found
        cells = change.what, change.target, change.verdict, change.why, said
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
