"""Stand-ins for CUDA's tools, made when a module is compiled where CUDA is not installed.

XLA asks ptxas and nvlink for their version, learns the newest PTX from how ptxas refuses one that
does not exist, lets them assemble kernels, and reads a library of mathematical functions. None of
it decides which kernels there are. So two scripts that answer and write a file do, and a library
without functions; the scheduled HLO is the same.
"""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path

_TOOL = """#!/bin/sh
case "$*" in
  *--version*)
    echo "@NAME@: NVIDIA (R) Cuda tools"
    echo "Cuda compilation tools, release 13.0, V13.0.88"
    exit 0;;
esac
for file in "$@"; do
  if [ -f "$file" ] && head -n 1 "$file" | grep -q "^\\.version 99"; then
    asked=$(head -n 1 "$file")
    echo "ptxas $file, line 1; fatal : Unsupported $asked; current version is '9.0'" >&2
    exit 255
  fi
done
while [ $# -gt 0 ]; do
  case "$1" in
    -o|--output-file) shift; printf 'cubin' > "$1";;
  esac
  shift
done
exit 0
"""
_EMPTY_LIBRARY = (
    "c-k#fVN4rk7`}4Q?}YBVieziEyYp@^ZRQ5Ig4pibWN^Av-H#IeQ6t8-VHFg~mDRSe#k3srV_BDUgv9>91QLG"
    "eFKfaNeh{TSoE>QvT#O;HAyf)O(~-uZS+f1`JJ==nzIiX-z2EaZ@B8%1E1R#k5JUq(5J8jJ_Ra@ChHgJy{Jy"
    "C#aoK>s2_}MgigQz)K-A%U9KRshdZ(vQ|F+R=cTO87O{W_uD_4Ijn5ciNu6Merx6N#CaZr|b8|}?g9%WT%eX"
    "|**%sta}0|n}b7GAzI#osg7n<p)2Y-iHvuV?%3@VNr+dy^-K7jU+p@=$#65+S_SmZ=v`<6wQ&bYmgyZyxC9+"
    "X553g(6-$8_R<D9Jrn(FAS2gEQ;_bLZNO4h<^*B9uUre+vZo$y<3}K{j}EJ{b5kO*q0!Pgb(xi8sE`LC79JR"
    "6KXNIr)0;Zmg-G_u{gMz37d8a`jHtPBw(khm&@na`}0glY&bloo-C5?g6vL_?qWO@QNT3{jCqivfN_P4#*xA"
    "!Yw<-`O~bNCkBIbk4c5G{)4a-V3e1MU<^x<vyeTcK(z@(iBwfp@Ym$_TwU($KTpI*$45CpS6G%xT#Sfx35Pi"
    "~s+r|>;V+w^WXf%VyGRd?1HMqY8|6PGqkqj2*naVs<JdC9PvnDXBNp>w@{5>r@3$inF7?(81jO>^qr5UXQU;"
    "1o9`i+#bn(3Dzr1;RNqDBTm+>as_6q!TT`|r{F1pSW}R?=|$B3<TT6|>-NY$?a(d$<PzQ%Z8BEv8at|2A+TO"
    "P?bvUzk;;qPOii5kHE>K|IrU`5;Z}3UHrtYXN3YU^jE@mj+G;EU>kJ@%<aBqo_$)*^LExmUmTTX$qHG>gPtx"
    "6vZ$e3XI#pXeQaeZHCnqxZ{P7#n#+|9<EY8u~B9>F#wNM%Bt=~_2i`HNXgEk=32@*3mWF=DtZ>f6u_v$SU?}"
    "L{&5#p{q&<PV~wYGM0$s(|MS8TGu##-E+20h|Js5TFMJ}l{#gw$`6RnhK2a6eU4dN{SUkZ!;pGtjjkGMgmq_"
    "P~>MZ(}@$@m-ag5W0VhSLL?=09ix@Q_kZFqKI+^1ylc@3-NT-PRcnY;7H_ImWy+SMECnjG)i_QQu>EHz!x1*"
    "ac+;XyW$1Y@?tO^BoLkq$m(R&y*Gqy^PIqt$(emx?KsnG(-b0(#s_a`^zWKF<`6z#D!w6NFLsY|*u#O0#$YN"
    "cWuT!po4>bbp7j=X77&q4`ujarAtIJ#q}^W^(3=UZ3x37u&l>qDmy*-F0pxIy5j8IQNP2#qdz@YDeUArQ=Hb"
    "@bL40{|84|hv@"
)
"""LLVM bitcode of a module without functions."""


def make_stand_ins(folder: Path) -> Path:
    """A folder that XLA takes for CUDA (`xla_gpu_cuda_data_dir`)."""
    tools, library = folder / "bin", folder / "nvvm" / "libdevice"
    tools.mkdir(parents=True)
    library.mkdir(parents=True)
    for name in ("ptxas", "nvlink", "fatbinary"):
        # A script's process may not change the mode of a file, but may create one with it.
        tool = os.open(tools / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
        with os.fdopen(tool, "w", encoding="utf-8") as file:
            file.write(_TOOL.replace("@NAME@", name))
    (library / "libdevice.10.bc").write_bytes(zlib.decompress(base64.b85decode(_EMPTY_LIBRARY)))
    return folder
