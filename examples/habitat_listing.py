"""Habitat's listing 1 (Yu et al., ATC 2021), run with wavecast on a machine with a GPU.

python examples/habitat_listing.py [GPU]    the GPU of this machine, as in the paper: RTX2070
"""

import sys
from collections.abc import Callable

import torch

import wavecast as habitat


def main(gpu: str | None = None) -> None:
    """Track one iteration on this machine's GPU and predict it on a V100."""
    if not torch.cuda.is_available():
        sys.exit(
            "error: this listing measures, so it needs a GPU, and torch sees none here; "
            "examples/first_prediction.py predicts without one"
        )
    run_my_training_iteration = make_iteration()
    run_my_training_iteration()  # the first iteration is slower, so it is not tracked

    # From here on this is the paper's listing, except that the GPU is an argument.
    tracker = habitat.OperationTracker(
        origin_device=None if gpu is None else getattr(habitat.Device, gpu),
    )

    with tracker.track():
        run_my_training_iteration()

    trace = tracker.get_tracked_trace()
    print(
        "Pred. iter. exec. time: {:.2f} ms".format(  # noqa: UP032
            trace.to_device(habitat.Device.V100).run_time_ms
        )
    )


def make_iteration() -> Callable[[], None]:
    """Build a small network, and return the function that trains it once."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 32 * 32, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(64, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")

    def iteration() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return iteration


if __name__ == "__main__":
    try:
        main(*sys.argv[1:2])
    except (habitat.WavecastError, AttributeError) as error:
        sys.exit(f"error: {error}")
