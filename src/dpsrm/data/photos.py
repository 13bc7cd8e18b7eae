"""Scattering maps of photographs, centred and scaled by constants of public photographs.

Scaling within each record, as other features have it, forgets how strong an image's edges are; constants keep it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpsrm.data.scattering import Extractor, scattering

_MEANS = """
.483 .0142 .0135 .0146 .0159 .0146 .0135 .0142 .0153 .0198 .0189 .021 .0238 .0209 .0188 .0198 .0218
.0026 .00219 .00171 .0014 .00122 .00131 .00179 .00252 .00217 .00238 .0022 .00183 .00135 .00115 .00131 .00175
.00168 .00222 .0027 .0027 .00188 .00132 .00118 .00133 .00134 .00178 .00266 .00345 .00266 .00178 .00133 .00121
.00118 .00132 .00188 .00269 .00268 .00221 .00168 .00134 .00131 .00115 .00136 .00183 .00218 .00237 .00217 .00174
.00179 .00131 .00122 .0014 .0017 .00219 .00261 .00252 .00252 .00175 .00138 .0013 .00137 .00175 .00253 .00319
"""
_SPREADS = """
.241 .0112 .00999 .0112 .0132 .0111 .00995 .0112 .0132 .0158 .0142 .0162 .0198 .016 .0141 .0159 .019
.00232 .00185 .00128 .000998 .000855 .000922 .0014 .00224 .00182 .00216 .00183 .00134 .000906 .000781 .000913 .00132
.00126 .00183 .00234 .0023 .0014 .000891 .000826 .000958 .000954 .00129 .00226 .00337 .00225 .00128 .000948 .000938
.000832 .00089 .0014 .0023 .00229 .0018 .00125 .000969 .000917 .000785 .000913 .00134 .00179 .00211 .00183 .00133
.0014 .000924 .00086 .000998 .00127 .00185 .00236 .00226 .00225 .00134 .00101 .00101 .00102 .00134 .00227 .00325
"""
"""Of each of the 81 maps, over places, colours and the first 3000 images of CIFAR-100: the image itself, averaged; 16
maps of edges (two scales, eight directions); 64 of edges among those."""


def photos(shape: tuple[int, ...]) -> Extractor:
    """From images (B, C, H, W) to (B, 81·C, H/4, W/4): scattering maps, scaled for photographs."""
    extract = scattering(shape)
    mean, spread = (
        torch.tensor([float(word) for word in words.split()]).repeat(shape[0])[:, None, None]
        for words in (_MEANS, _SPREADS)
    )

    def scaled(images: Tensor) -> Tensor:
        return (extract(images) - mean) / spread

    return scaled
