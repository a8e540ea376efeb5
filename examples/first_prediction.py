"""One training step, predicted on three GPUs that this machine does not have.

python examples/first_prediction.py
"""

from train import make_step

import wavecast as wc


def main() -> None:
    """Trace once, then predict on each GPU."""
    trace = wc.trace(make_step, samples=256)
    print(f"{len(trace)} operator calls, {len(trace.counts)} of them different\n")
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "l4"):
        p = wc.predict(trace, name)
        print(f"{name:14} {1e3 * p.seconds:7.2f} ms a step", end="")
        if p.low_s is not None and p.high_s is not None:
            print(f" ({1e3 * p.low_s:.2f} to {1e3 * p.high_s:.2f})", end="")
        print()
        print(f"{'':14} {1e3 * p.gpu_s:7.2f} ms GPU, {1e3 * p.host_s:.2f} ms host")
        if p.unpredicted:
            print(f"{'':14} without {', '.join(p.unpredicted)}")


if __name__ == "__main__":
    main()
