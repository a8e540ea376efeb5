"""The JAX training steps that are measured: those of the fit, and those of the blind test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lab.steps import jax_depthwise as depthwise
from lab.steps import jax_loops as loops
from lab.steps import jax_nets as nets
from lab.steps import jax_newer_nets as newer
from lab.steps import jax_odd_loops as odd_loops
from lab.steps import jax_odd_nets as odd
from lab.steps import jax_other_nets as other
from lab.steps import jax_sweeps as sweeps
from wavecast.suite import jax_models as suite
from wavecast.suite.jax_models import JaxTraining

HOST = "host"
"""The family of steps in which the host does most of the work."""


@dataclass(frozen=True)
class JaxCase:
    """A step by name, with the family that a fit leaves out as one."""

    name: str
    family: str
    make: Callable[[], JaxTraining]


def _steps(family: str, **makes: Callable[[], JaxTraining]) -> list[JaxCase]:
    return [JaxCase(name, family, make) for name, make in makes.items()]


FIT = [
    *_steps(
        "dense",
        mlp_wide_bf16=partial(nets.mlp, 4096, 4096, 4, "bf16"),
        mlp_fp32=partial(nets.mlp, 2048, 2048, 4, "fp32", normed=True),
        mlp_dropout=partial(nets.mlp, 8192, 1024, 6, "bf16", dropout=0.1, normed=True),
        mlp_small=partial(nets.mlp, 256, 512, 6, "fp32", optimizer="momentum"),
        mlp_tanh=partial(nets.mlp, 1024, 3072, 3, "bf16", activation=jax.nn.gelu, optimizer="sgd"),
    ),
    *_steps(
        "residual",
        resnet50_bf16=partial(suite.resnet50, 32, "bf16"),
        basic_bf16=partial(nets.basic_resnet, 256, 32, (64, 128, 256), 2, "bf16"),
        basic_fp32=partial(nets.basic_resnet, 64, 64, (64, 128, 256), 2, "fp32"),
        basic_group=partial(nets.basic_resnet, 32, 96, (64, 128), 2, "bf16", norm="group"),
        basic_layer=partial(nets.basic_resnet, 32, 64, (96, 192), 2, "fp32", norm="layer"),
    ),
    *_steps(
        "plain_conv",
        vgg_bf16=partial(nets.plain_convnet, 64, 128, (64, 128, 256, 512), "bf16"),
        vgg_fp32=partial(nets.plain_convnet, 128, 64, (64, 128, 256), "fp32", optimizer="adamw"),
    ),
    *_steps(
        "depthwise",
        convnext_bf16=partial(nets.depthwise_net, 64, 128, 192, 4, "bf16"),
        convnext_fp32=partial(nets.depthwise_net, 32, 128, 128, 4, "fp32", kernel=3),
    ),
    *_steps(
        "decoder",
        gpt_bf16=partial(suite.gpt2, 8, "bf16", layers=4),
        gpt_fp32=partial(suite.gpt2, 4, "fp32", layers=3, sequence=512),
        gpt_long=partial(suite.gpt2, 2, "bf16", layers=2, sequence=2048, width=1024, heads=16),
        llama_bf16=partial(nets.llama, 4, 1024, 1024, 3, 16, "bf16"),
        llama_cudnn=partial(nets.llama, 4, 2048, 1024, 3, 8, "bf16", attention="cudnn"),
        llama_scan=partial(nets.llama, 4, 1024, 768, 8, 12, "bf16", scanned=True),
        llama_remat=partial(nets.llama, 8, 512, 1024, 6, 8, "bf16", scanned=True, remat=True),
        llama_small=partial(nets.llama, 2, 256, 256, 4, 4, "fp32", vocabulary=4000),
    ),
    *_steps(
        "encoder",
        vit_bf16=partial(nets.encoder, 64, 224, 16, 384, 4, 6, "bf16"),
        vit_fp32=partial(nets.encoder, 32, 224, 16, 384, 3, 6, "fp32"),
        vit_dropout=partial(nets.encoder, 32, 128, 8, 512, 4, 8, "bf16", dropout=0.1),
        vit_sgd=partial(nets.encoder, 16, 224, 14, 768, 3, 12, "bf16", optimizer="sgd"),
    ),
    *_steps("mixer", mixer_bf16=partial(nets.mixer, 64, 196, 512, 6, "bf16")),
    *_steps(
        "recurrent",
        lstm_fp32=partial(loops.recurrent, 64, 128, 1024, 1, "fp32"),
        lstm_bf16=partial(loops.recurrent, 128, 96, 768, 2, "bf16"),
        gru_fp32=partial(loops.recurrent, 32, 128, 512, 2, "fp32", cell="gru"),
    ),
    *_steps(
        "diffusion",
        unet_bf16=partial(loops.denoiser, 32, 64, (64, 128, 256), "bf16"),
        unet_fp32=partial(loops.denoiser, 16, 32, (64, 128, 256), "fp32"),
    ),
    *_steps(
        "mixture",
        moe_bf16=partial(other.mixture, 4, 512, 512, 3, 8, "bf16"),
        moe_fp32=partial(other.mixture, 2, 256, 512, 2, 16, "fp32", top=1),
    ),
    *_steps(
        "recommender",
        dlrm_sgd=partial(other.recommender, 8192, 16, 100000, 64, "fp32"),
        dlrm_adam=partial(other.recommender, 4096, 8, 100000, 128, "bf16", optimizer="adamw"),
    ),
    *_steps("graph", graph_fp32=partial(other.graph_net, 50000, 400000, 128, 3, "fp32")),
    *_steps("state_space", ssm_bf16=partial(other.state_space, 8, 1024, 768, 2, "bf16")),
    *_steps("sound", wavenet_bf16=partial(other.sound_net, 8, 8192, 128, 6, "bf16")),
    *_steps("volume", volume_bf16=partial(other.volume_net, 4, 48, 64, 4, "bf16")),
    *_steps("contrastive", towers_bf16=partial(other.two_towers, 4096, 1024, 4, "bf16")),
]
"""The steps whose kernels are fitted."""

BLIND = [
    *_steps(
        "residual",
        blind_resnet50=partial(suite.resnet50, 48, "fp32"),
        blind_wide_resnet=partial(nets.basic_resnet, 128, 32, (160, 320), 2, "bf16"),
        blind_group_resnet=partial(
            nets.basic_resnet, 48, 64, (64, 128, 256), 1, "fp32", norm="group"
        ),
    ),
    *_steps(
        "plain_conv", blind_vgg=partial(nets.plain_convnet, 96, 96, (64, 128, 256, 256), "bf16")
    ),
    *_steps("depthwise", blind_convnext=partial(nets.depthwise_net, 48, 160, 256, 3, "bf16")),
    *_steps(
        "decoder",
        blind_gpt2=partial(suite.gpt2, 4, "bf16", layers=6),
        blind_gpt_wide=partial(
            suite.gpt2, 4, "bf16", layers=2, width=1536, heads=16, sequence=1024
        ),
        blind_llama=partial(nets.llama, 8, 512, 1280, 3, 20, "bf16"),
        blind_llama_cudnn=partial(nets.llama, 2, 4096, 1024, 3, 16, "bf16", attention="cudnn"),
        blind_llama_scan=partial(
            nets.llama, 4, 768, 1024, 10, 16, "bf16", scanned=True, remat=True
        ),
    ),
    *_steps(
        "encoder",
        blind_vit=partial(nets.encoder, 48, 224, 16, 512, 5, 8, "bf16"),
        blind_vit_fp32=partial(nets.encoder, 16, 192, 16, 512, 3, 8, "fp32", dropout=0.1),
    ),
    *_steps("mixer", blind_mixer=partial(nets.mixer, 48, 256, 640, 4, "bf16")),
    *_steps(
        "recurrent",
        blind_lstm=partial(loops.recurrent, 96, 160, 896, 1, "bf16"),
        blind_gru=partial(loops.recurrent, 64, 100, 768, 1, "fp32", cell="gru"),
    ),
    *_steps(
        "diffusion",
        blind_unet=partial(loops.denoiser, 24, 64, (96, 192, 384), "bf16"),
        blind_unet_small=partial(loops.denoiser, 64, 32, (64, 128), "fp32", attended=False),
    ),
    *_steps("mixture", blind_moe=partial(other.mixture, 4, 384, 768, 2, 12, "bf16")),
    *_steps("recommender", blind_dlrm=partial(other.recommender, 6144, 12, 200000, 96, "fp32")),
    *_steps("contrastive", blind_towers=partial(other.two_towers, 6144, 768, 5, "bf16")),
]
"""The steps of the blind test, which no fit has seen."""

SECOND = [
    *_steps(
        "depthwise",
        second_mobile=partial(newer.mobile_net, 128, 160, (32, 48, 64, 96), 3, "bf16"),
        second_mobile_wide=partial(newer.mobile_net, 48, 192, (32, 64, 96), 5, "bf16"),
        second_convnext=partial(newer.staged_convnext, 64, 224, (96, 192, 384), 2, "bf16"),
    ),
    *_steps(
        "residual",
        second_resnet50=partial(suite.resnet50, 40, "bf16"),
        second_resnet=partial(nets.basic_resnet, 96, 48, (96, 192, 384), 1, "fp32"),
        second_densenet=partial(newer.dense_net, 64, 48, 32, 6, "bf16"),
    ),
    *_steps(
        "decoder",
        second_gpt2=partial(suite.gpt2, 6, "bf16", layers=3, sequence=768),
        second_llama=partial(nets.llama, 2, 1536, 1536, 2, 12, "bf16"),
        second_llama_cudnn=partial(nets.llama, 8, 1024, 768, 3, 6, "bf16", attention="cudnn"),
        second_llama_scan=partial(
            nets.llama, 2, 1024, 1280, 6, 10, "bf16", scanned=True, remat=True
        ),
        second_translator=partial(newer.translator, 24, 128, 512, 2, 8, "bf16"),
    ),
    *_steps(
        "encoder",
        second_bert=partial(newer.masked_language_model, 16, 256, 768, 3, 12, "bf16"),
        second_vit=partial(nets.encoder, 96, 160, 16, 448, 4, 7, "bf16"),
    ),
    *_steps(
        "recurrent",
        second_seq2seq=partial(newer.attending_lstm, 48, 64, 640, "fp32"),
        second_gru=partial(loops.recurrent, 128, 80, 1024, 1, "bf16", cell="gru"),
    ),
    *_steps(
        "diffusion",
        second_dit=partial(newer.diffusion_transformer, 32, 256, 768, 3, 12, "bf16"),
        second_unet=partial(loops.denoiser, 16, 96, (64, 96, 192), "bf16"),
    ),
    *_steps("mixture", second_moe=partial(other.mixture, 8, 256, 640, 2, 8, "bf16", top=1)),
    *_steps(
        "recommender",
        second_dlrm=partial(other.recommender, 16384, 10, 50000, 48, "fp32", optimizer="adamw"),
        second_sessions=partial(newer.session_recommender, 512, 50, 100000, 128, 2, "bf16"),
    ),
]
"""The second blind test: half of its networks are of kinds that the fit has not seen."""

_PARTS = 4
_MISSING_PAIRS = {"gpt2": "decoder", "resnet50": "residual", "vit": "encoder"}


def _pair(name: str) -> JaxTraining:
    from lab.steps.framework_pairs import pair_named  # imports torch

    return pair_named(name).make_jax()


MORE = [
    *(
        JaxCase(f"pair_{name}", family, partial(_pair, name))
        for name, family in _MISSING_PAIRS.items()
    ),
    *(
        JaxCase(
            f"depthwise_{part}",
            "depthwise",
            partial(depthwise.depthwise_step, depthwise.SWEEP[part::_PARTS]),
        )
        for part in range(_PARTS)
    ),
    *(
        JaxCase(f"dense_{part}", "layers", partial(sweeps.dense_step, sweeps.LAYERS[part::_PARTS]))
        for part in range(_PARTS)
    ),
    *_steps(
        HOST,
        host_few=partial(sweeps.host_step, 4, 4),
        host_leaves_100=partial(sweeps.host_step, 100, 4),
        host_leaves_600=partial(sweeps.host_step, 600, 4),
        host_kernels_60=partial(sweeps.host_step, 4, 60),
        host_kernels_240=partial(sweeps.host_step, 4, 240),
        host_loop_100=partial(sweeps.host_step, 4, 4, 100),
    ),
]
"""Steps that show one thing in many sizes, and those of pairs with torch that were not measured."""

ODD = [
    *_steps(
        "odd",
        odd_ensemble=partial(odd.ensemble, 16, 1024, (512, 1024, 256)),
        odd_physics=partial(odd.physics, 512, 32, 256, 3),
        odd_meta=partial(odd.meta_learner, 256, 64, 256, 3),
        odd_sparse=partial(odd.sparse_net, 50_000, 500_000, 128, 2),
        odd_fourier=partial(odd.fourier_operator, 16, 128, 64, 24, 3),
        odd_policy=partial(odd.policy_gradient, 4096, 64, 256),
        odd_scaled=partial(odd.scaled_loss, 4096, 2048, 4),
        odd_ragged=partial(odd.ragged_mixture, 8192, 768, 2048, 8),
        odd_triangles=partial(odd.triangles, 1, 192, 128, "bf16"),
        odd_accumulated=partial(odd.accumulated, 8, 2048, 1024, 2048),
        odd_autoencoder=partial(odd_loops.autoencoder, 8192, 2048, 1024, 64),
        odd_volume=partial(odd_loops.volume_autoencoder, 4, 64, 48, jnp.bfloat16),
        odd_sorted=partial(odd_loops.sorted_scores, 4096, 512, 1024),
        odd_recurrence=partial(odd_loops.linear_recurrence, 8, 1024, 512),
        odd_eight_bits=partial(odd_loops.eight_bits, 8192, 2048, 3),
        odd_adapters=partial(odd_loops.adapters, 4096, 2048, 16, 4),
        odd_rendered=partial(odd_loops.rendered, 4096, 96, 256, 4),
        odd_equation=partial(odd_loops.differential_equation, 2048, 512, 20),
        odd_aligned=partial(odd_loops.aligned_speech, 64, 256, 48, 512),
        odd_fixed=partial(odd_loops.fixed_point, 4096, 1024, 40),
    ),
]
"""The steps of the third blind test, of kinds that few benchmarks have."""

GROUPS = {"fit": FIT, "blind": BLIND, "more": MORE, "second": SECOND, "odd": ODD}


def steps_of(group: str) -> list[JaxCase]:
    """The steps of a group, one of `GROUPS`."""
    return GROUPS[group]


def step_named(name: str) -> JaxCase:
    """The step of a name, of any group."""
    return next(step for group in GROUPS.values() for step in group if step.name == name)
