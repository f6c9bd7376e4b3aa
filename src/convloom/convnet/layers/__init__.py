"""Layer types of the 2012 files, one module a family; READERS finds them by the key ``type``."""

from __future__ import annotations

from collections.abc import Callable

from convloom.convnet.layers.base import Definition, Extent, Initial
from convloom.convnet.layers.conv import Conv, Local, Window, read_conv, read_local
from convloom.convnet.layers.cost import Cost, read_cost
from convloom.convnet.layers.dense import Fc, TreeFc, read_fc, read_treefc
from convloom.convnet.layers.image import Blur, Mirror, Nailbed, read_blur, read_href, read_nailbed
from convloom.convnet.layers.norm import Norm, read_norm
from convloom.convnet.layers.pointwise import (
    Apply,
    Concat,
    EltMax,
    EltSum,
    HalfSparse,
    Softmax,
    neuron_of,
    read_concat,
    read_eltmax,
    read_eltsum,
    read_hs,
    read_neuron,
    read_softmax,
)
from convloom.convnet.layers.pool import Pool, read_pool
from convloom.convnet.values import Values

Reader = Callable[[Values, tuple[Extent, ...], list[str]], Definition]

#: {type: what reads its section}; data and treefc need to know the data set and are read apart.
READERS: dict[str, Reader] = {
    "conv": read_conv,
    "local": read_local,
    "fc": read_fc,
    "pool": read_pool,
    "rnorm": read_norm,
    "cnorm": read_norm,
    "cmrnorm": read_norm,
    "hs": read_hs,
    "softmax": read_softmax,
    "neuron": read_neuron,
    "eltsum": read_eltsum,
    "eltmax": read_eltmax,
    "concat": read_concat,
    "blur": read_blur,
    "nailbed": read_nailbed,
    "href": read_href,
    "cost.logreg": read_cost,
    "cost.crossent2": read_cost,
    "cost.rflickr": read_cost,
    "cost.sum2": read_cost,
}

#: Types that the original knew and no known file uses.
UNUSED = (
    "resize",
    "rscale",
    "rgb2yuv",
    "rgb2lab",
    "cost.crossent",
    "cost.gsum2",
    "cost.tica",
    "cost.msm",
)

__all__ = [
    "READERS",
    "UNUSED",
    "Apply",
    "Blur",
    "Concat",
    "Conv",
    "Cost",
    "Definition",
    "EltMax",
    "EltSum",
    "Extent",
    "Fc",
    "HalfSparse",
    "Initial",
    "Local",
    "Mirror",
    "Nailbed",
    "Norm",
    "Pool",
    "Softmax",
    "TreeFc",
    "Window",
    "neuron_of",
    "read_treefc",
]
