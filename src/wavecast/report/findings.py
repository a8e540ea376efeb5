"""What a profile shows, in sentences: where the time of a step is lost, the most first."""

from __future__ import annotations

from wavecast.report.units import duration, percent
from wavecast.steps.profile import Profile
from wavecast.traces.kernel_names import is_collective, is_copy, readable_name

_WORTH_SAYING = 0.05
"""The least share of the step of which a sentence speaks."""
_WAITS = {
    "host": "the GPU idles {share} of the step waiting for the host",
    "synchronisation": "the GPU idles {share} of the step because the host waited for it before",
    "communication": "the GPU idles {share} of the step beside communication",
    "input": "the GPU idles {share} of the step waiting for its input",
    "pipeline bubble": "{share} of the step is the pipeline's bubble",
    "slowest rank": "{share} of the step is waiting for the slowest rank",
}


def findings(profile: Profile) -> list[str]:
    """What a profile shows, the largest share of the step first."""
    if not profile.seconds:
        return []
    found = [*_lost(profile), *_longest(profile)]
    return [text for share, text in sorted(found, reverse=True) if share >= _WORTH_SAYING]


def _lost(profile: Profile) -> list[tuple[float, str]]:
    """Idle time by cause, and communication that nothing hides."""
    found = []
    for cause, seconds in profile.idle_s.items():
        if cause == "communication" and not profile.measured:
            continue  # in a prediction it is the exposed communication
        share = seconds / profile.seconds
        words = _WAITS.get(cause, f"the GPU idles {{share}} of the step: {cause}")
        found.append((share, words.format(share=percent(share)) + _place(profile, cause)))
    exposed = profile.exposed_s / profile.seconds
    found.append((exposed, f"{percent(exposed)} of the step is exposed communication (NCCL)"))
    return found


def _place(profile: Profile, cause: str) -> str:
    if cause not in profile.idle_at:
        return ""
    place, share = profile.idle_at[cause]
    return f", most at {place} ({percent(share)} of it)"


def _longest(profile: Profile) -> list[tuple[float, str]]:
    """The longest kernel, and copies between host and GPU."""
    copies_s = sum(
        kernel.seconds
        for kernel in profile.kernels
        if is_copy(kernel.name) and ("HtoD" in kernel.name or "DtoH" in kernel.name)
    )
    share = copies_s / profile.seconds
    found = [(share, f"copies between host and GPU take {duration(copies_s)}")]
    computing = [k for k in profile.kernels if not is_copy(k.name) and not is_collective(k.name)]
    for kernel in computing[:1]:
        what = readable_name(kernel.name)
        used = "" if kernel.attained is None else f", at {percent(kernel.attained)} of its roofline"
        text = f"{what} takes {percent(kernel.share)} of the GPU's time{used}"
        found.append((kernel.seconds / profile.seconds, text))
    return found
