"""What ``forward`` may call on tensors, with torch.nn.functional's names, orders and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convloom.ir import ShapeError
from convloom.nn import arguments
from convloom.nn.arguments import ArgumentError
from convloom.nn.parameter import Buffer, Parameter
from convloom.nn.tensor import SymbolicTensor, TraceError
from convloom.ops import (
    Activation,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AddBias,
    AvgPool2d,
    BatchNorm,
    Blur,
    ChannelDropout,
    Concat,
    ContrastNorm2d,
    Conv2d,
    Conv2dDgrad,
    Dropout,
    GroupNorm,
    Linear,
    Local2d,
    LocalResponseNorm,
    MaxPool2d,
    Mirror,
    Mul,
    Nailbed,
    NoisyReLU,
    Op,
    Pad2d,
    Pair,
    Resize2d,
    ResponseNorm2d,
    Softmax,
    WeightedSum,
)

_Size = int | tuple[int, int]
_OutputSize = int | tuple[int | None, int | None] | None


def conv2d(
    input: SymbolicTensor,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: _Size = 1,
    padding: _Size | str = 0,
    dilation: _Size = 1,
    groups: int = 1,
) -> SymbolicTensor:
    """Convolution of (N, C, H, W) by filters (K, C/groups, R, S)."""
    x = _tensor(input, "conv2d")
    if len(weight.shape) != 4:
        raise ShapeError(f"conv2d: filters have shape (K, C, R, S), not {weight.shape}")
    geometry = arguments.conv_geometry(weight.shape[2:], stride, padding, dilation, groups)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return x.tracer.apply(Conv2d(*geometry), *inputs, function="conv2d")


def locally_connected2d(
    input: SymbolicTensor,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: _Size = 1,
    padding: _Size = 0,
    dilation: _Size = 1,
    groups: int = 1,
) -> SymbolicTensor:
    """As ``conv2d``, with filters of its own for every output pixel: (P*Q*K, C/groups, R, S), and
    a bias (K,), or (K, P, Q) for one of every output."""
    x = _tensor(input, "locally_connected2d")
    if len(weight.shape) != 4:
        raise ShapeError(
            f"locally_connected2d: filters have shape (P*Q*K, C, R, S), not {weight.shape}"
        )
    geometry = arguments.conv_geometry(weight.shape[2:], stride, padding, dilation, groups)
    y = x.tracer.apply(Local2d(*geometry), x, weight, function="locally_connected2d")
    return y if bias is None else add_bias(y, bias)


def add_bias(input: SymbolicTensor, bias: Parameter) -> SymbolicTensor:
    """x (N, K, ...) plus a bias, (K,) or unshared (K, ...)."""
    x = _tensor(input, "add_bias")
    return x.tracer.apply(AddBias(), x, bias, function="add_bias")


def pad(
    input: SymbolicTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> SymbolicTensor:
    """Images (N, C, H, W) with more around them: ``pad`` is (left, right, top, bottom), or (left,
    right) alone; ``mode`` "constant", "reflect" or "replicate"."""
    x = _tensor(input, "pad")
    around = (*pad, 0, 0) if len(pad) == 2 else pad
    if value is not None and mode != "constant":
        raise ArgumentError(f"padding by {mode!r} takes no value, it is {value!r}")
    op = Pad2d(arguments.sides(around), mode, float(value or 0.0))
    return x.tracer.apply(op, x, function="pad")


def interpolate(
    input: SymbolicTensor,
    size: _Size | None = None,
    scale_factor: float | tuple[float, float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> SymbolicTensor:
    """Images resized to ``size``, or by ``scale_factor`` where that gives whole numbers; ``mode``
    "nearest" or "bilinear"."""
    x = _tensor(input, "interpolate")
    arguments.check_resizing(mode, align_corners, antialias)
    if x.ndim != 4:
        raise ShapeError(f"interpolate needs an input of shape (N, C, H, W), it got {x.shape}")
    to = arguments.resized((x.shape[2], x.shape[3]), size, scale_factor)
    op = Resize2d(to, mode, bool(align_corners))
    return x.tracer.apply(op, x, function="interpolate")


def nailbed(input: SymbolicTensor, stride: int) -> SymbolicTensor:
    """Every ``stride``-th pixel, from the middle outwards (cuda-convnet's ``nailbed``)."""
    x = _tensor(input, "nailbed")
    return x.tracer.apply(Nailbed(arguments.whole(stride, "stride")), x, function="nailbed")


def blur(input: SymbolicTensor, filter_size: int, stdev: float) -> SymbolicTensor:
    """A Gaussian blur over ``filter_size`` rows and columns (cuda-convnet's ``blur``)."""
    x = _tensor(input, "blur")
    op = Blur(arguments.whole(filter_size, "filter_size"), float(stdev))
    return x.tracer.apply(op, x, function="blur")


def mirror(input: SymbolicTensor) -> SymbolicTensor:
    """Left and right exchanged (cuda-convnet's ``href``)."""
    x = _tensor(input, "mirror")
    return x.tracer.apply(Mirror(), x, function="mirror")


def conv_transpose2d(
    input: SymbolicTensor,
    weight: Parameter,
    bias: Parameter | None = None,
    stride: _Size = 1,
    padding: _Size = 0,
    output_padding: _Size = 0,
    groups: int = 1,
    dilation: _Size = 1,
) -> SymbolicTensor:
    """Transposed convolution of (N, C, H, W) by filters (C, K/groups, R, S): the gradient of a
    convolution from its outputs to its inputs."""
    x = _tensor(input, "conv_transpose2d")
    if len(weight.shape) != 4 or x.ndim != 4:
        raise ShapeError(
            f"conv_transpose2d: images (N, C, H, W) meet filters (C, K/groups, R, S), not "
            f"{x.shape} filters {weight.shape}"
        )
    kernel = (weight.shape[2], weight.shape[3])
    geometry = arguments.conv_geometry(kernel, stride, padding, dilation, groups)
    more = arguments.output_padding(output_padding, geometry[0])
    (height, width) = (
        (extent - 1) * u - 2 * p + d * (k - 1) + 1 + o
        for extent, u, p, d, k, o in zip(x.shape[2:], *geometry[:3], kernel, more, strict=True)
    )
    if height < 1 or width < 1:
        raise ShapeError(
            f"conv_transpose2d: images of {x.shape[2]}x{x.shape[3]} would become {height}x{width}; "
            "use less padding"
        )
    op = Conv2dDgrad(*geometry, size=(height, width))
    y = x.tracer.apply(op, x, weight, function="conv_transpose2d")
    return y if bias is None else add_bias(y, bias)


def linear(
    input: SymbolicTensor, weight: Parameter, bias: Parameter | None = None
) -> SymbolicTensor:
    """x w^T + b of (N, I) and a weight (O, I)."""
    x = _tensor(input, "linear")
    if len(weight.shape) != 2:
        raise ShapeError(f"linear: a weight has shape (out, in), not {weight.shape}")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return x.tracer.apply(Linear(), *inputs, function="linear")


def relu(input: SymbolicTensor, inplace: bool = False) -> SymbolicTensor:
    """max(x, 0); ``inplace`` changes nothing, since plans share memory wherever they can."""
    return _tensor(input, "relu").relu()


def activation(input: SymbolicTensor, kind: str, a: float = 0.0, b: float = 0.0) -> SymbolicTensor:
    """Any function of the family in ``ops/activation.py``, by kind and parameters."""
    x = _tensor(input, "activation")
    op = Activation(kind, arguments.number(a, "a"), arguments.number(b, "b"))
    return x.tracer.apply(op, x, function=kind)


def relu6(input: SymbolicTensor, inplace: bool = False) -> SymbolicTensor:
    """min(max(x, 0), 6)."""
    return activation(input, "clamp", 0.0, 6.0)


def hardtanh(
    input: SymbolicTensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> SymbolicTensor:
    """min(max(x, min_val), max_val)."""
    return activation(input, "clamp", min_val, max_val)


def leaky_relu(
    input: SymbolicTensor, negative_slope: float = 0.01, inplace: bool = False
) -> SymbolicTensor:
    """x where x > 0, else negative_slope * x."""
    return activation(input, "leaky_relu", negative_slope)


def elu(input: SymbolicTensor, alpha: float = 1.0, inplace: bool = False) -> SymbolicTensor:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return activation(input, "elu", alpha)


def gelu(input: SymbolicTensor, approximate: str = "none") -> SymbolicTensor:
    """x times the normal law's Phi(x); ``approximate="tanh"`` takes the formula with tanh."""
    return activation(input, arguments.gelu_kind(approximate))


def silu(input: SymbolicTensor, inplace: bool = False) -> SymbolicTensor:
    """x / (1 + exp(-x))."""
    return activation(input, "silu")


def hardswish(input: SymbolicTensor, inplace: bool = False) -> SymbolicTensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return activation(input, "hardswish")


def tanh(input: SymbolicTensor) -> SymbolicTensor:
    """The hyperbolic tangent."""
    return activation(input, "tanh", 1.0, 1.0)


def sigmoid(input: SymbolicTensor) -> SymbolicTensor:
    """1 / (1 + exp(-x))."""
    return activation(input, "sigmoid")


def softplus(input: SymbolicTensor, beta: float = 1.0, threshold: float = 20.0) -> SymbolicTensor:
    """log(1 + exp(beta * x)) / beta, or x where beta * x > threshold."""
    return activation(input, "softplus", beta, threshold)


def square(input: SymbolicTensor) -> SymbolicTensor:
    """x * x."""
    return activation(input, "square")


def abs(input: SymbolicTensor) -> SymbolicTensor:
    """The magnitude of each element; its gradient at 0 is 0."""
    return activation(input, "abs")


def sqrt(input: SymbolicTensor) -> SymbolicTensor:
    """The square root of each element."""
    return activation(input, "sqrt")


def softmax(input: SymbolicTensor, dim: int | None = None) -> SymbolicTensor:
    """Positive numbers that sum to 1 along ``dim``; 1, the channels, unless given."""
    return _softmax(input, dim, False)


def log_softmax(input: SymbolicTensor, dim: int | None = None) -> SymbolicTensor:
    """The logarithms of ``softmax``."""
    return _softmax(input, dim, True)


def _softmax(input: SymbolicTensor, dim: int | None, log: bool) -> SymbolicTensor:
    function = "log_softmax" if log else "softmax"
    x = _tensor(input, function)
    axis = 1 if dim is None else dim + x.ndim if dim < 0 else dim
    return x.tracer.apply(Softmax(axis, log), x, function=function)


def max_pool2d(
    input: SymbolicTensor,
    kernel_size: _Size,
    stride: _Size | None = None,
    padding: _Size = 0,
    dilation: _Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    outputs: _Size | None = None,
    ties: str = "first",
    magnitude: bool = False,
) -> SymbolicTensor:
    """The greatest element of each window; ``stride`` is the kernel size unless given.

    ``outputs``, ``ties`` and ``magnitude`` are explained at ``nn.MaxPool2d``.
    """
    x = _tensor(input, "max_pool2d")
    arguments.no_indices(return_indices)
    w = arguments.pool_window(kernel_size, stride, padding, dilation, ceil_mode, outputs)
    how = (w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode, w.outputs, ties, bool(magnitude))
    op = MaxPool2d(*how)
    extra = ["index"] if op.arity_out > 1 else []
    return x.tracer.apply(op, x, function="max_pool2d", extra=extra)


def avg_pool2d(
    input: SymbolicTensor,
    kernel_size: _Size,
    stride: _Size | None = None,
    padding: _Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    outputs: _Size | None = None,
) -> SymbolicTensor:
    """The mean of each window; ``stride`` is the kernel size unless given.

    ``outputs`` is explained at ``nn.AvgPool2d``.
    """
    x = _tensor(input, "avg_pool2d")
    w = arguments.pool_window(kernel_size, stride, padding, 1, ceil_mode, outputs)
    counted, divisor = bool(count_include_pad), arguments.divisor(divisor_override)
    op = AvgPool2d(w.kernel, w.stride, w.padding, w.ceil_mode, counted, divisor, w.outputs)
    return x.tracer.apply(op, x, function="avg_pool2d")


def adaptive_avg_pool2d(input: SymbolicTensor, output_size: _OutputSize) -> SymbolicTensor:
    """The mean of each of ``output_size`` windows that cover the image in nearly equal parts."""
    x = _tensor(input, "adaptive_avg_pool2d")
    output, kernel = _adapted(x, output_size, "adaptive_avg_pool2d")
    op = AdaptiveAvgPool2d(output) if kernel is None else AvgPool2d(kernel, kernel)
    return x.tracer.apply(op, x, function="adaptive_avg_pool2d")


def adaptive_max_pool2d(
    input: SymbolicTensor, output_size: _OutputSize, return_indices: bool = False
) -> SymbolicTensor:
    """The greatest element of each of ``output_size`` windows, as ``adaptive_avg_pool2d``'s."""
    x = _tensor(input, "adaptive_max_pool2d")
    arguments.no_indices(return_indices)
    output, kernel = _adapted(x, output_size, "adaptive_max_pool2d")
    op = AdaptiveMaxPool2d(output) if kernel is None else MaxPool2d(kernel, kernel)
    return x.tracer.apply(op, x, function="adaptive_max_pool2d", extra=["index"])


def _adapted(
    x: SymbolicTensor, output_size: _OutputSize, function: str
) -> tuple[Pair, Pair | None]:
    """The output's size, and the kernel of the sliding pool that is the same if there is one."""
    if x.ndim != 4:
        raise ShapeError(f"{function} needs an input of shape (N, C, H, W), it got {x.shape}")
    wished, size = arguments.output_size(output_size), x.shape[2:]
    height, width = (s if w is None else w for w, s in zip(wished, size, strict=True))
    if size[0] == 0 or size[1] == 0 or size[0] % height or size[1] % width:
        return (height, width), None
    return (height, width), (size[0] // height, size[1] // width)


def dropout(
    input: SymbolicTensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    rescale: bool = True,
) -> SymbolicTensor:
    """Zero each element with chance ``p`` and scale the rest, in training steps only.

    Evaluation and prediction leave it out by themselves; ``training=False`` leaves it out always.
    Without ``rescale`` the rest stays as it is, and prediction multiplies by 1 - p.
    """
    x, chance = _tensor(input, "dropout"), arguments.probability(p)
    return x.tracer.drawn(x, Dropout(chance, rescale=rescale)) if training and chance > 0 else x


def dropout2d(
    input: SymbolicTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> SymbolicTensor:
    """As ``dropout``, for whole channels of (N, C, H, W)."""
    x, chance = _tensor(input, "dropout2d"), arguments.probability(p)
    return x.tracer.drawn(x, ChannelDropout(chance)) if training and chance > 0 else x


def noisy_relu(input: SymbolicTensor) -> SymbolicTensor:
    """max(0, r + r n) with r = max(0, x), n standard normal, drawn anew every step: cuda-convnet's
    ``nrelu``. Predictions have noise too, the same each time. Gradients hold the noise constant."""
    return input.tracer.drawn(_tensor(input, "noisy_relu"), NoisyReLU(), "noisy_relu")


def batch_norm(
    input: SymbolicTensor,
    running_mean: Buffer | None,
    running_var: Buffer | None,
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    training: bool = True,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    num_batches_tracked: Buffer | None = None,
) -> SymbolicTensor:
    """Each channel of (N, C, ...) to mean 0 and variance 1 over the batch, in training steps.

    Evaluation and prediction use the running values by themselves. Running values come all three
    together, or none of them; weight and bias likewise. ``training=False`` in a training step is
    not supported.
    """
    x = _tensor(input, "batch_norm")
    running = _all_or_none("batch_norm", running_mean, running_var, num_batches_tracked)
    rows = _all_or_none("batch_norm", weight, bias)
    if not training:
        raise arguments.ArgumentError(
            "batch_norm: training=False is not supported, a training step always normalises by "
            "its batch; evaluation and prediction use the running values by themselves"
        )
    op = BatchNorm(eps, momentum, affine=bool(rows), track=bool(running))
    kept = ["running_mean.new", "running_var.new", "num_batches_tracked.new"] if running else []
    extra = ["mean", "invstd", *kept]
    return _normalised(x, op, (*rows, *running), "batch_norm", extra)


def group_norm(
    input: SymbolicTensor,
    num_groups: int,
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    eps: float = 1e-5,
) -> SymbolicTensor:
    """Each group of channels of each sample of (N, C, ...) to mean 0 and variance 1."""
    x = _tensor(input, "group_norm")
    rows = _all_or_none("group_norm", weight, bias)
    op = GroupNorm(arguments.whole(num_groups, "num_groups"), affine=bool(rows), eps=eps)
    return _normalised(x, op, rows, "group_norm", ["mean", "invstd"])


def instance_norm(
    input: SymbolicTensor,
    running_mean: None = None,
    running_var: None = None,
    weight: Parameter | None = None,
    bias: Parameter | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> SymbolicTensor:
    """Each channel of each sample of (N, C, ...) to mean 0 and variance 1.

    There are no running values (so ``momentum`` means nothing): ``use_input_stats`` must be True.
    """
    x = _tensor(input, "instance_norm")
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise arguments.ArgumentError("instance_norm: running values are not supported")
    rows = _all_or_none("instance_norm", weight, bias)
    op = GroupNorm(x.shape[1], affine=bool(rows), eps=eps)
    return _normalised(x, op, rows, "instance_norm", ["mean", "invstd"])


def local_response_norm(
    input: SymbolicTensor,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    blocked: bool = False,
) -> SymbolicTensor:
    """x (k + alpha / size * (sum of squares over neighbouring channels))^-beta."""
    x = _tensor(input, "local_response_norm")
    op = LocalResponseNorm(arguments.whole(size, "size"), alpha, beta, k, blocked)
    return _normalised(x, op, (), "local_response_norm", [])


def response_norm2d(
    input: SymbolicTensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> SymbolicTensor:
    """x (k + alpha / size^2 * (sum of squares over neighbouring pixels))^-beta."""
    x = _tensor(input, "response_norm2d")
    op = ResponseNorm2d(arguments.whole(size, "size"), alpha, beta, k)
    return x.tracer.apply(op, x, function="response_norm2d")


def contrast_norm2d(
    input: SymbolicTensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> SymbolicTensor:
    """As ``response_norm2d``, of squares of x minus its window's mean, held constant backward."""
    x = _tensor(input, "contrast_norm2d")
    op = ContrastNorm2d(arguments.whole(size, "size"), alpha, beta, k)
    return x.tracer.apply(op, x, function="contrast_norm2d")


def flatten(input: SymbolicTensor, start_dim: int = 1, end_dim: int = -1) -> SymbolicTensor:
    """Merge axes ``start_dim`` to ``end_dim`` of a sample; the batch, axis 0, always stays."""
    return _tensor(input, "flatten").flatten(start_dim, end_dim)


def add(input: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """The sum of two tensors of one shape."""
    return _tensor(input, "add") + _tensor(other, "add")


def mul(input: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """The product of two tensors of one shape, element by element."""
    x = _tensor(input, "mul")
    return x.tracer.apply(Mul(), x, _tensor(other, "mul"), function="mul")


def weighted_sum(
    tensors: Sequence[SymbolicTensor], coefficients: Sequence[float]
) -> SymbolicTensor:
    """The sum of ``coefficients[i] * tensors[i]``, all of one shape (cuda-convnet's eltsum)."""
    if not tensors:
        raise TraceError("weighted_sum needs at least one tensor, the list is empty")
    parts = [_tensor(tensor, "weighted_sum") for tensor in tensors]
    factors = tuple(arguments.number(c, "a coefficient") for c in coefficients)
    return parts[0].tracer.apply(WeightedSum(factors), *parts, function="weighted_sum")


def concat(tensors: Sequence[SymbolicTensor], dim: int = 1) -> SymbolicTensor:
    """Join tensors along the channels, ``dim`` 1 (torch's default, 0, would join batches)."""
    if isinstance(tensors, SymbolicTensor) or not isinstance(tensors, Sequence):
        raise TraceError("concat takes a list of tensors: concat([a, b], dim=1)")
    if not tensors:
        raise TraceError("concat needs at least one tensor, the list is empty")
    parts = [_tensor(tensor, "concat") for tensor in tensors]
    first = parts[0]
    axis = dim + first.ndim if dim < 0 else dim
    if axis != 1:
        first.tracer.fail(f"concat along axis {dim} is not supported; use dim=1, the channels")
    return first.tracer.apply(Concat(), *parts, function="concat")


def cat(tensors: Sequence[SymbolicTensor], dim: int = 1) -> SymbolicTensor:
    """As ``concat``."""
    return concat(tensors, dim)


def _normalised(
    x: SymbolicTensor,
    op: Op,
    rows: tuple[Parameter | Buffer, ...],
    function: str,
    extra: Sequence[str],
) -> SymbolicTensor:
    """The op on (N, C, ...); sequences (N, C, L) go as images (N, C, L, 1), which kernels know."""
    shape = x.shape
    if x.ndim == 3:
        x = x.reshape(*shape, 1)
    y = x.tracer.apply(op, x, *rows, function=function, extra=extra)
    return y.reshape(shape) if len(shape) == 3 else y


def _all_or_none(function: str, *variables: Any) -> tuple[Any, ...]:
    """The variables, or nothing where all are None. Raises ArgumentError for some of them."""
    given = tuple(variable for variable in variables if variable is not None)
    if len(given) not in (0, len(variables)):
        raise arguments.ArgumentError(
            f"{function}: give all of weight and bias, and all of running_mean, running_var and "
            "num_batches_tracked, or none"
        )
    return given


def _tensor(value: Any, function: str) -> SymbolicTensor:
    if not isinstance(value, SymbolicTensor):
        raise TraceError(
            f"{function} works on the tensors inside forward, it got {type(value).__name__}; "
            "arrays go through Module.predict, convloom.vjp or a Trainer"
        )
    return value
